"""monitored_barrier: who is missing is named, on every rank that came, by the deadline."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import group, place
from dist.wrong import assert_group_works

SHORT = timedelta(milliseconds=500)


def barrier(timeout=timedelta(seconds=5), wait_all_ranks=False, of=None):
    """torch's own function wants Gloo; the process group's passes on to any backend."""
    (of or dist.group.WORLD).monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


@ranks(1, 2, 3, 5)
def test_passes_when_all_come():
    for wait_all_ranks in (False, True, False):
        barrier(wait_all_ranks=wait_all_ranks)
    assert_group_works()


@ranks(3)
def test_waits_for_the_last():
    here = place()
    for late in range(3):
        barrier()
        if here.rank == late:
            time.sleep(0.15)
        left = time.monotonic()
        barrier()
        times = torch.zeros(3, 2, dtype=torch.float64)
        mine = torch.tensor([left, time.monotonic()], dtype=torch.float64)
        dist.all_gather_into_tensor(times, mine)
        assert times[:, 1].min() >= times[:, 0].max()


@ranks(3)
def test_many_in_a_row():
    start = time.monotonic()
    for _ in range(50):
        barrier()
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("missing", [1, 2])
@ranks(3, backend=None)
def test_missing_rank_is_named(missing):
    here = place()
    with group():
        dist.barrier()
        if here.rank != missing:
            start = time.monotonic()
            with pytest.raises(RuntimeError, match=rf"Rank {missing} failed to pass .*500 ms"):
                barrier(SHORT)
            assert time.monotonic() - start < 2
            here.store.set(f"told{here.rank}", "1")
        else:
            here.store.wait([f"told{rank}" for rank in range(3) if rank != missing])
        # The group itself is as good as before.
        assert_group_works()


@ranks(4, backend=None)
def test_all_missing_ranks_are_named():
    here = place()
    with group():
        dist.barrier()
        if here.rank in (0, 2):
            with pytest.raises(RuntimeError, match=r"Ranks 1, 3 failed to pass .*500 ms"):
                barrier(SHORT, wait_all_ranks=True)
            here.store.set(f"told{here.rank}", "1")
        else:
            here.store.wait(["told0", "told2"])
        assert_group_works()


@ranks(3, backend=None)
def test_without_rank_0():
    here = place()
    with group():
        dist.barrier()
        if here.rank > 0:
            start = time.monotonic()
            with pytest.raises(RuntimeError, match=r"Rank \d successfully reached .*rank 0"):
                barrier(SHORT)
            assert 0.4 < time.monotonic() - start < 3
            here.store.set(f"told{here.rank}", "1")
        else:
            here.store.wait(["told1", "told2"])


@ranks(2, backend=None)
def test_who_comes_late_hears_of_it_and_the_next_one_passes():
    here = place()
    with group():
        if here.rank == 0:
            with pytest.raises(RuntimeError, match=r"Rank 1 failed"):
                barrier(SHORT)
            here.store.set("told", "1")
        else:
            here.store.wait(["told"])
            with pytest.raises(RuntimeError, match=r"Rank 1 failed"):
                barrier(SHORT)
        barrier()
        barrier()


@ranks(4)
def test_of_subgroups_at_once():
    here = place()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[here.rank // 2]
    for _ in range(3):
        barrier(of=mine)
    barrier()
    dist.destroy_process_group(mine)
