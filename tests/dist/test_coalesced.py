"""Several tensors in one call: the coalesced forms of collectives, and batches of calls."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ringcomm
from dist import references
from dist.pool import ranks
from dist.worker import agree, group, place
from dist.wrong import assert_refused, assert_told, raw

SHAPES = [(3,), (2, 5), (), (0,), (1001,), (70_001,), (4, 1, 3)]


def whole():
    """Torch binds some of these to the process group only, which passes them on."""
    return dist.group.WORLD


def filled(shape, value, dtype=torch.float32):
    return torch.full(shape, value, dtype=dtype)


def coalesced_options(op):
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = op
    return options


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX", "PREMUL_SUM"])
@ranks(1, 2, 3, 5)
def test_all_reduce(op):
    here = place()
    sizes = [0, 1, 7, 1003, 60_001]
    parts = [references.inputs("float32", op, here.world, size, seed=size) for size in sizes]
    tensors = [part[here.rank].clone() for part in parts]
    raw().allreduce_coalesced(tensors, coalesced_options(references.reduce_op(op))).wait()
    for tensor, part in zip(tensors, parts, strict=True):
        references.assert_reduced(tensor, part, op)
        agree(tensor)


@ranks(2, 3)
def test_all_reduce_of_shapes_through_torch():
    here = place()
    tensors = [filled(shape, float(here.rank + i)) for i, shape in enumerate(SHAPES)]
    work = dist.all_reduce_coalesced(tensors, async_op=True)
    work.wait()
    total = here.world * (here.world - 1) / 2
    for i, tensor in enumerate(tensors):
        assert (tensor == total + here.world * i).all()


@ranks(1, 2, 3, 5)
def test_all_gather_coalesced():
    here = place()
    inputs = [filled(shape, here.rank * 100 + i) for i, shape in enumerate(SHAPES)]
    outputs = [[torch.zeros(shape) for shape in SHAPES] for _ in range(here.world)]
    whole().allgather_coalesced(outputs, inputs).wait()
    for rank in range(here.world):
        for i, output in enumerate(outputs[rank]):
            assert output.shape == SHAPES[i]
            assert (output == rank * 100 + i).all()


@ranks(2, 3)
def test_all_gather_coalesced_through_torch():
    here = place()
    inputs = [filled((size,), float(here.rank)) for size in (1, 40_000)]
    outputs = [[torch.zeros(1), torch.zeros(40_000)] for _ in range(here.world)]
    dist.all_gather_coalesced(outputs, inputs)
    for rank in range(here.world):
        assert all((output == rank).all() for output in outputs[rank])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bool, torch.int16, torch.complex64])
@ranks(1, 2, 3, 5)
def test_all_gather_into_tensor_coalesced(dtype):
    here = place()
    sizes = [3, 0, 1, 30_001]
    inputs = [filled((size,), here.rank + 1, dtype) for size in sizes]
    outputs = [torch.zeros(size * here.world, dtype=dtype) for size in sizes]
    whole().allgather_into_tensor_coalesced(outputs, inputs).wait()
    for size, output in zip(sizes, outputs, strict=True):
        for rank in range(here.world):
            assert torch.equal(
                output[rank * size : (rank + 1) * size], filled((size,), rank + 1, dtype)
            )


@pytest.mark.parametrize("op", ["SUM", "AVG", "PREMUL_SUM"])
@ranks(1, 2, 3, 5)
def test_reduce_scatter_tensor_coalesced(op):
    here = place()
    sizes = [3, 0, 1, 30_001]
    parts = [
        references.inputs("float32", op, here.world, size * here.world, seed=size) for size in sizes
    ]
    inputs = [part[here.rank].clone() for part in parts]
    outputs = [torch.zeros(size) for size in sizes]
    options = dist.ReduceScatterOptions()
    options.reduceOp = references.reduce_op(op)
    whole().reduce_scatter_tensor_coalesced(outputs, inputs, options).wait()
    for size, output, part, given in zip(sizes, outputs, parts, inputs, strict=True):
        own = slice(here.rank * size, (here.rank + 1) * size)
        references.assert_reduced(output, [one[own] for one in part], op)
        assert torch.equal(given, part[here.rank])


@pytest.mark.parametrize("settings", [{"lanes": 3}, {"slice_bytes": 4096}])
@ranks(3, backend=None)
def test_options(settings):
    here = place()
    with group(pg_options=ringcomm.Options(**settings)):
        sizes = [5, 200_000, 0, 400_001]
        tensors = [filled((size,), here.rank, torch.int64) for size in sizes]
        outputs = [torch.zeros(3 * size, dtype=torch.int64) for size in sizes]
        gathering = whole().allgather_into_tensor_coalesced(outputs, [t.clone() for t in tensors])
        raw().allreduce_coalesced(tensors).wait()
        gathering.wait()
        assert all((tensor == 3).all() for tensor in tensors)
        assert all((out.view(3, -1).sum(0) == 3).all() for out in outputs)


@ranks(2)
def test_strided_results():
    here = place()
    base = torch.full((30, 2), float(here.rank + 1))
    raw().allreduce_coalesced([base[:, 0], base[:10, 1]]).wait()
    assert (base[:, 0] == 3).all()
    assert (base[:10, 1] == 3).all()
    assert (base[10:, 1] == here.rank + 1).all()
    target = torch.full((8, 2), -1.0)
    whole().allgather_into_tensor_coalesced(
        [target[:, 1]], [torch.full((4,), float(here.rank))]
    ).wait()
    assert target[:, 1].tolist() == [0.0] * 4 + [1.0] * 4
    assert (target[:, 0] == -1).all()


@ranks(2, 3)
def test_future_of_all_results():
    here = place()
    tensors = [torch.ones(3), torch.ones(50_000)]
    future = raw().allreduce_coalesced(tensors).get_future()
    results = future.wait()
    assert [result.data_ptr() for result in results] == [tensor.data_ptr() for tensor in tensors]
    assert all((tensor == here.world).all() for tensor in tensors)


CALLS = {
    "reduce-empty": (
        lambda: raw().allreduce_coalesced([], dist.AllreduceCoalescedOptions()),
        r"all_reduce: .*non-empty",
    ),
    "reduce-dtypes": (
        lambda: raw().allreduce_coalesced([torch.ones(1), torch.ones(1).int()]),
        r"all_reduce: .*type.*Float.*Int",
    ),
    "gather-ranks": (
        lambda: whole().allgather_coalesced([[torch.ones(1)]], [torch.ones(1)]),
        r"all_gather: .*output.* 1 tensors.* 2 ranks",
    ),
    "gather-tensors": (
        lambda: whole().allgather_coalesced([[torch.ones(1)] * 2] * 2, [torch.ones(1)]),
        r"all_gather: .*output.*expected 1 .*got 2",
    ),
    "gather-size": (
        lambda: whole().allgather_coalesced([[torch.ones(2)], [torch.ones(2)]], [torch.ones(1)]),
        r"all_gather: .*size.* 1 elements.* 2 ",
    ),
    "into-pairs": (
        lambda: whole().allgather_into_tensor_coalesced([torch.ones(2)] * 2, [torch.ones(1)]),
        r"all_gather: .*same length.*1 and 2",
    ),
    "into-size": (
        lambda: whole().allgather_into_tensor_coalesced(
            [torch.ones(2), torch.ones(3)], [torch.ones(1), torch.ones(1)]
        ),
        r"all_gather: .*size.* 2 elements.* 3 ",
    ),
    "scatter-pairs": (
        lambda: whole().reduce_scatter_tensor_coalesced([torch.ones(1)] * 2, [torch.ones(2)]),
        r"reduce_scatter: .*same length.*1 and 2",
    ),
    "scatter-size": (
        lambda: whole().reduce_scatter_tensor_coalesced([torch.ones(2)], [torch.ones(3)]),
        r"reduce_scatter: .*size.* 4 elements.* 3 ",
    ),
}


@pytest.mark.parametrize("call", CALLS)
@ranks(2)
def test_wrong_argument_is_named(call):
    assert_refused(*CALLS[call])


@ranks(2, backend=None)
def test_ranks_with_different_tensors_are_told():
    def call(rank):
        raw().allreduce_coalesced([torch.ones(5), torch.ones(6 + rank), torch.ones(7)]).wait()

    assert_told(call, "all_reduce #")
