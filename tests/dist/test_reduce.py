"""reduce to every root: values within bounds, inputs of the others left alone, wrong calls."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ringcomm
from dist import references
from dist.pool import ranks
from dist.worker import group, place
from dist.wrong import assert_group_works, assert_refused, assert_told, raw

COUNTS = (0, 1, 2, 3, 7, 1003, 70_001, 600_000)


def reduce_to(root, dtype, op, count, async_op=False):
    here = place()
    parts = references.inputs(dtype, op, here.world, count, seed=root)
    tensor = parts[here.rank].clone()
    work = dist.reduce(tensor, root, references.reduce_op(op), async_op=async_op)
    if async_op:
        assert work.wait() is True
        assert work.get_future().wait()[0].data_ptr() == tensor.data_ptr()
    if here.rank == root:
        references.assert_reduced(tensor, parts, op)
    else:
        assert torch.equal(tensor, parts[here.rank])


CASES = [
    (dtype, op)
    for dtype in references.DTYPES
    for op in references.OPS
    if references.defined(dtype, op)
]


@pytest.mark.parametrize(("dtype", "op"), CASES)
@ranks(3)
def test_every_dtype_and_op(dtype, op):
    for root in (0, 2):
        reduce_to(root, dtype, op, 131)


@pytest.mark.parametrize("count", COUNTS)
@ranks(1, 2, 3, 5)
def test_size_to_every_root(count):
    for root in range(place().world):
        reduce_to(root, "float32", "SUM", count, async_op=bool(root % 2))


@pytest.mark.parametrize("algorithm", ["direct", "chain"])
@ranks(2, 5, backend=None)
def test_forced_algorithm(algorithm):
    with group(pg_options=ringcomm.Options(algorithms=f"reduce={algorithm}", slice_bytes=4096)):
        for count in (0, 1, 3, 1003, 300_000):
            for op in ("AVG", "MAX", "PREMUL_SUM"):
                reduce_to(1, "float32", op, count)
        reduce_to(0, "float16", "AVG", 1003)


@ranks(3, backend=None)
def test_lanes():
    with group(pg_options=ringcomm.Options(lanes=3)):
        for root in range(3):
            reduce_to(root, "int64", "SUM", 400_003)
            reduce_to(root, "bfloat16", "AVG", 5)


@ranks(2, 3)
def test_strided():
    here = place()
    base = torch.full((100, 2), float(here.rank + 1))
    dist.reduce(base[:, 0], 1)
    assert (base[:, 1] == here.rank + 1).all()
    total = here.world * (here.world + 1) / 2
    assert (base[:, 0] == (total if here.rank == 1 else here.rank + 1)).all()


@ranks(2)
def test_expanded_source():
    """An input may overlap in memory; a result may not."""
    here = place()
    tensor = torch.tensor([2.0]).expand(5)
    dist.reduce(tensor if here.rank == 1 else (result := torch.ones(5)), 0)
    if here.rank == 0:
        assert result.tolist() == [3.0] * 5
    with pytest.raises(ValueError, match=r"reduce: .*overlap"):
        dist.reduce(torch.tensor([2.0]).expand(5), here.rank)
    assert_group_works()


def to_root(root, root_tensor=0, tensors=None):
    options = dist.ReduceOptions()
    options.rootRank, options.rootTensor = root, root_tensor
    return raw().reduce([torch.ones(3)] if tensors is None else tensors, options)


CALLS = {
    "root-too-large": (lambda: to_root(2), r"reduce: .*root.*2.*allowed: 0 to 1"),
    "root-negative": (lambda: to_root(-1), r"reduce: .*root.*-1.*allowed: 0 to 1"),
    "root-tensor": (lambda: to_root(0, 1), r"reduce: .*root tensor.*1.*allowed: 0"),
    "two-tensors": (lambda: to_root(0, 0, [torch.ones(1)] * 2), r"reduce: .*single-element.*2"),
    "sparse": (lambda: to_root(0, 0, [torch.eye(2).to_sparse()]), r"reduce: .*layout"),
    "op": (
        lambda: dist.reduce(torch.ones(3), 0, dist.ReduceOp.BXOR),
        r"reduce with bxor.*float32",
    ),
    "dtype": (
        lambda: dist.reduce(torch.ones(3).to(torch.float8_e5m2), 0),
        r"reduce with sum.*float8_e5m2",
    ),
    "premul-of-integers": (
        lambda: dist.reduce(torch.ones(3).int(), 0, dist._make_nccl_premul_sum(2.0)),
        r"reduce with premul_sum.*int32",
    ),
}


@pytest.mark.parametrize("call", CALLS)
@ranks(2)
def test_wrong_argument_is_named(call):
    assert_refused(*CALLS[call])


MISMATCHES = {
    "size": lambda rank: dist.reduce(torch.ones(10 + rank), 0),
    "dtype": lambda rank: dist.reduce(torch.ones(4, dtype=[torch.int32, torch.float32][rank]), 0),
    "op": lambda rank: dist.reduce(torch.ones(4), 0, [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank]),
    "large": lambda rank: dist.reduce(torch.ones(1_000_000 + rank), 0),
}


@pytest.mark.parametrize("what", MISMATCHES)
@ranks(2, backend=None)
def test_ranks_that_disagree_are_told_at_once(what):
    assert_told(MISMATCHES[what], "reduce #")
