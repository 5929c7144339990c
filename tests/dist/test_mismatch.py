"""Calls that do not fit each other where nothing that is exchanged tells: each rank is told."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import group, place


def parts(*sizes):
    return [torch.ones(size) for size in sizes]


def two_roots(call):
    """`call(root, lists)` with `lists` on the root alone; rank 1 takes itself for the root."""
    rank, world = place().rank, place().world
    root = 1 if rank == 1 else 0
    call(root, parts(*[3] * world) if rank == root else None)


def empty_in_all_to_all():
    """Rank 0 has nothing for the last rank, which expects something."""
    rank, world = place().rank, place().world
    inputs = parts(*[4] * (world - 1), 0) if rank == 0 else parts(*[4] * world)
    dist.all_to_all(parts(*[4] * world), inputs)


def empty_in_gather():
    rank, world = place().rank, place().world
    outputs = parts(*[4] * world) if rank == 0 else None
    dist.gather(torch.ones(0 if rank == 1 else 4), outputs, dst=0)


def empty_in_scatter():
    rank, world = place().rank, place().world
    inputs = parts(4, 0, *[4] * (world - 2)) if rank == 0 else None
    dist.scatter(torch.ones(4), inputs, src=0)


def empty_in_reduce_scatter():
    """Only rank 1 thinks that it has a block."""
    rank, world = place().rank, place().world
    sizes = [4, 4 if rank == 1 else 0, *[4] * (world - 2)]
    dist.reduce_scatter(torch.ones(sizes[rank]), parts(*sizes))


CALLS = {
    "all_to_all": (empty_in_all_to_all, ["all_to_all #", "(4 x float32", "(0 x float32"]),
    "gather": (empty_in_gather, ["gather #", "(4 x float32", "(0 x float32"]),
    "scatter": (empty_in_scatter, ["scatter #", "(4 x float32", "(0 x float32"]),
    "reduce_scatter": (empty_in_reduce_scatter, ["reduce_scatter #", "4 x float32", "0 x float32"]),
    "gather-roots": (
        lambda: two_roots(lambda root, lists: dist.gather(torch.ones(3), lists, dst=root)),
        ["gather #", "root 0", "root 1"],
    ),
    "scatter-roots": (
        lambda: two_roots(lambda root, lists: dist.scatter(torch.ones(3), lists, src=root)),
        ["scatter #", "root 0", "root 1"],
    ),
    "reduce-roots": (
        lambda: two_roots(lambda root, _: dist.reduce(torch.ones(3), root)),
        ["reduce #", "root 0", "root 1"],
    ),
    "broadcast-roots": (
        lambda: two_roots(lambda root, _: dist.broadcast(torch.ones(3), root)),
        ["broadcast #", "root 0", "root 1"],
    ),
}


@pytest.mark.parametrize("what", CALLS)
@ranks(2, 3, backend=None, timeout=12)
def test_every_rank_is_told_within_a_second(what):
    call, words = CALLS[what]

    def call_and_wait():
        call()
        # Who only sends has done its part: the group ends all the same, without another call.
        time.sleep(max(0.0, start + 0.9 - time.monotonic()))
        dist.barrier()

    with group():
        dist.barrier()
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="the ranks call different operations") as error:
            call_and_wait()
        assert time.monotonic() - start < 1
        for word in words:
            assert word in str(error.value)


@ranks(3, timeout=20)
def test_empty_parts_and_late_ranks_are_no_mismatch():
    rank, world = place().rank, place().world
    for late in range(world):
        if rank == late:
            time.sleep(0.5)
        sizes = [5 if rank + other == world - 1 else 0 for other in range(world)]
        outputs = [torch.zeros(size) for size in sizes]
        dist.all_to_all(outputs, parts(*sizes))
        assert [output.sum().item() for output in outputs] == sizes
        dist.gather(torch.ones(0), parts(*[0] * world) if rank == 1 else None, dst=1)
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [float(world)] * 3
