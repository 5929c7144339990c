"""reduce_scatter of lists and of tensors: values within bounds, inputs left alone, wrong calls."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ringcomm
from dist import references
from dist.pool import ranks
from dist.worker import agree, group, place
from dist.wrong import assert_refused, assert_told, raw

COUNTS = (0, 1, 2, 3, 7, 1003, 70_001, 300_000)


def reduce_list(dtype, op, counts, async_op=False):
    """Rank r gets the reduction of everybody's r-th tensor, which has `counts[r]` elements."""
    here = place()
    blocks = [
        references.inputs(dtype, op, here.world, count, seed=block)
        for block, count in enumerate(counts)
    ]
    inputs = [block[here.rank].clone() for block in blocks]
    output = torch.zeros(counts[here.rank], dtype=inputs[0].dtype)
    work = dist.reduce_scatter(output, inputs, references.reduce_op(op), async_op=async_op)
    if async_op:
        assert work.wait() is True
        assert work.get_future().wait()[0].data_ptr() == output.data_ptr()
    references.assert_reduced(output, blocks[here.rank], op)
    for tensor, block in zip(inputs, blocks, strict=True):
        assert torch.equal(tensor, block[here.rank])


def reduce_tensor(dtype, op, count, async_op=False):
    here = place()
    parts = references.inputs(dtype, op, here.world, count * here.world)
    source = parts[here.rank].clone()
    output = torch.zeros(count, dtype=source.dtype)
    work = dist.reduce_scatter_tensor(output, source, references.reduce_op(op), async_op=async_op)
    if async_op:
        assert work.wait() is True
    own = slice(here.rank * count, (here.rank + 1) * count)
    references.assert_reduced(output, [part[own] for part in parts], op)
    assert torch.equal(source, parts[here.rank])


CASES = [
    (dtype, op)
    for dtype in references.DTYPES
    for op in references.OPS
    if references.defined(dtype, op)
]


@pytest.mark.parametrize(("dtype", "op"), CASES)
@ranks(2, 3)
def test_every_dtype_and_op(dtype, op):
    reduce_tensor(dtype, op, 61)
    reduce_list(dtype, op, [60 + rank for rank in range(place().world)])


@pytest.mark.parametrize("count", COUNTS)
@ranks(1, 2, 3, 5)
def test_size(count):
    reduce_list("float32", "SUM", [count] * place().world, async_op=True)
    reduce_tensor("float32", "AVG", count, async_op=True)
    reduce_tensor("int32", "SUM", count)


UNEVEN = {
    "growing": lambda rank, world: rank * 1001,
    "one": lambda rank, world: 50_000 if rank == world - 1 else 0,
    "all-but-one": lambda rank, world: 0 if rank == 0 else 7,
    "large-and-small": lambda rank, world: 300_000 if rank % 2 else 1,
    "none": lambda rank, world: 0,
}


@pytest.mark.parametrize("shape", UNEVEN)
@ranks(1, 2, 3, 5)
def test_uneven(shape):
    here = place()
    counts = [UNEVEN[shape](rank, here.world) for rank in range(here.world)]
    for op in ("SUM", "AVG", "PREMUL_SUM"):
        reduce_list("float32", op, counts)
    reduce_list("float16", "AVG", counts)
    reduce_list("int16", "MAX", counts)


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
@ranks(2, 5, backend=None)
def test_forced_algorithm(algorithm):
    options = ringcomm.Options(algorithms=f"reduce_scatter={algorithm}", slice_bytes=4096)
    with group(pg_options=options):
        world = place().world
        for count in (0, 1, 3, 1003, 150_000):
            reduce_tensor("float32", "SUM", count)
            reduce_list("int64", "SUM", [count * (rank % 3) for rank in range(world)])
        reduce_list("bfloat16", "AVG", [11 * rank for rank in range(world)])


@ranks(3, backend=None)
def test_lanes():
    with group(pg_options=ringcomm.Options(lanes=3)):
        reduce_tensor("float64", "SUM", 300_001)
        reduce_tensor("bool", "BXOR", 5)
        reduce_list("float32", "AVG", [400_000, 3, 250_000])


@ranks(2, 3)
def test_strided_output_and_inputs():
    here = place()
    base = torch.full((40, 3), -1.0)
    inputs = [torch.full((40, 2), float(here.rank + 10 * to))[:, 0] for to in range(here.world)]
    dist.reduce_scatter(base[:, 1], inputs)
    total = sum(range(here.world)) + 10 * here.rank * here.world
    assert (base[:, 1] == total).all()
    assert (base[:, ::2] == -1).all()
    whole = torch.arange(2 * 5 * here.world, dtype=torch.float32).view(5 * here.world, 2)
    column = torch.full((5, 3), -1.0)
    dist.reduce_scatter_tensor(column[:, 2], whole[:, 1])
    expected = here.world * whole[here.rank * 5 : here.rank * 5 + 5, 1]
    assert torch.equal(column[:, 2], expected)
    assert (column[:, :2] == -1).all()


@ranks(3)
def test_output_in_the_input():
    """The own block of the input may be the output, as FSDP has it."""
    here = place()
    whole = torch.arange(9.0) + here.rank
    own = whole[3 * here.rank : 3 * here.rank + 3]
    dist.reduce_scatter_tensor(own, whole)
    assert own.tolist() == [3.0 * (3 * here.rank + i) + 3 for i in range(3)]


@pytest.mark.parametrize("count", [5, 100_003])
@ranks(3)
def test_agrees_with_all_reduce_in_every_bit(count):
    """What all_gather makes of it is one tensor, the same everywhere."""
    here = place()
    parts = references.inputs("float32", "SUM", here.world, count * here.world)
    output, whole = torch.empty(count), torch.empty(count * here.world)
    dist.reduce_scatter_tensor(output, parts[here.rank])
    dist.all_gather_into_tensor(whole, output)
    agree(whole)
    references.assert_reduced(whole, parts, "SUM")


ONES = torch.ones(3)
CALLS = {
    "short-list": (
        lambda: raw().reduce_scatter([ONES], [[ONES]], dist.ReduceScatterOptions()),
        r"reduce_scatter: .*input.*1 tensors.*2 ranks",
    ),
    "two-lists": (
        lambda: raw().reduce_scatter([ONES], [[ONES] * 2] * 2, dist.ReduceScatterOptions()),
        r"reduce_scatter: .*single-element input.*2",
    ),
    "two-outputs": (
        lambda: raw().reduce_scatter([ONES] * 2, [[ONES] * 2], dist.ReduceScatterOptions()),
        r"reduce_scatter: .*single-element.*2",
    ),
    "size": (
        lambda: dist.reduce_scatter(torch.ones(3), [torch.ones(4), torch.ones(4)]),
        r"reduce_scatter: .*size.* 3 .* 4 ",
    ),
    "dtypes": (
        lambda: raw().reduce_scatter(
            [ONES], [[ONES, torch.ones(3).int()]], dist.ReduceScatterOptions()
        ),
        r"reduce_scatter: .*type.*Float.*Int",
    ),
    "tensor-size": (
        lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(7)),
        r"reduce_scatter: .*size.* 6 elements, .* 7 ",
    ),
    "tensor-dtype": (
        lambda: raw()._reduce_scatter_base(torch.ones(3).int(), torch.ones(6)),
        r"reduce_scatter: .*type.*Float.*Int",
    ),
    "op": (
        lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(6), dist.ReduceOp.BAND),
        r"reduce_scatter with band.*float32",
    ),
    "overlapping-output": (
        lambda: dist.reduce_scatter_tensor(torch.ones(1).expand(3), torch.ones(6)),
        r"reduce_scatter: .*overlap",
    ),
}


@pytest.mark.parametrize("call", CALLS)
@ranks(2)
def test_wrong_argument_is_named(call):
    assert_refused(*CALLS[call])


def tensors_of(count, dtype=torch.float32, op=dist.ReduceOp.SUM):
    output = torch.ones(count, dtype=dtype)
    dist.reduce_scatter_tensor(output, torch.ones(2 * count, dtype=dtype), op)


MISMATCHES = {
    "size": lambda rank: tensors_of(10 + rank),
    "large": lambda rank: tensors_of(500_000 + rank),
    "dtype": lambda rank: tensors_of(4, [torch.int32, torch.float32][rank]),
    "op": lambda rank: tensors_of(4, op=[dist.ReduceOp.SUM, dist.ReduceOp.MIN][rank]),
    "block-sizes": lambda rank: dist.reduce_scatter(
        torch.ones(4), [torch.ones(4 + (rank == 1)), torch.ones(4)]
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
@ranks(2, backend=None)
def test_ranks_that_disagree_are_told_at_once(what):
    assert_told(MISMATCHES[what], "reduce_scatter #")
