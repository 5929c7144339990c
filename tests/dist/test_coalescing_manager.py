"""torch's coalescing manager: calls in a block that end as one."""

from __future__ import annotations

import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from dist.pool import ranks
from dist.worker import group, place
from dist.wrong import assert_group_works, raw

CPU = torch.device("cpu")


def neighbours():
    here = place()
    return (here.rank + 1) % here.world, (here.rank - 1) % here.world


@pytest.mark.parametrize("count", [1, 1_000_000])
@pytest.mark.parametrize("receive_first", [False, True])
@ranks(2, 3)
def test_ring_of_messages(count, receive_first):
    here = place()
    after, before = neighbours()
    received = torch.zeros(count)
    with _coalescing_manager(device=CPU, async_ops=True) as block:
        if receive_first:
            dist.irecv(received, before)
        dist.isend(torch.full((count,), float(here.rank)), after)
        if not receive_first:
            dist.irecv(received, before)
    assert len(block.works) == 1
    block.wait()
    assert (received == before).all()


@ranks(2, 3)
def test_block_that_waits_in_its_end():
    after, before = neighbours()
    received = torch.zeros(200_000)
    with _coalescing_manager(device=CPU):
        dist.isend(torch.full((200_000,), float(place().rank)), after)
        dist.irecv(received, before)
    assert (received == before).all()


@pytest.mark.parametrize("async_ops", [False, True])
@ranks(2, 3)
def test_collectives(async_ops):
    here = place()
    sums = [torch.full((size,), 1.0) for size in (3, 50_000)]
    with _coalescing_manager(device=CPU, async_ops=async_ops) as block:
        for tensor in sums:
            dist.all_reduce(tensor)
    if async_ops:
        block.wait()
    assert all((tensor == here.world).all() for tensor in sums)


@ranks(2, 3)
def test_collectives_and_messages_together():
    here = place()
    after, before = neighbours()
    shown, received = torch.full((70_000,), float(here.rank)), torch.zeros(70_000)
    with _coalescing_manager(device=CPU, async_ops=True) as block:
        dist.broadcast(shown, 1, async_op=True)
        dist.irecv(received, before)
        dist.isend(torch.full((70_000,), float(here.rank)), after)
    block.wait()
    assert (shown == 1).all()
    assert (received == before).all()


@pytest.mark.parametrize("async_ops", [False, True])
@ranks(2)
def test_empty_block(async_ops):
    with _coalescing_manager(device=CPU, async_ops=async_ops) as block:
        pass
    block.wait()
    work = end_of_block(lambda: None)
    assert work.is_completed()
    assert work.is_success()
    assert work.wait()
    assert work.get_future().wait() == []
    assert work.get_future_result().wait() == 0
    assert_group_works()


def end_of_block(calls):
    dist.group.WORLD._start_coalescing(CPU)
    calls()
    return dist.group.WORLD._end_coalescing(CPU)


@ranks(2)
def test_the_work_of_a_block():
    here = place()
    tensors = [torch.ones(2), torch.ones(3)]
    dist.barrier()

    def calls():
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)

    if here.rank == 1:
        here.store.wait(["looked"])
    work = end_of_block(calls)
    future = work.get_future()
    if here.rank == 0:
        assert not work.is_completed()
        assert not work.is_success()
        assert not future.done()
        with pytest.raises(RuntimeError, match="Timed out waiting"):
            work.wait(timedelta(milliseconds=50))
        here.store.set("looked", "1")
    assert work.wait(timedelta(seconds=10))
    assert work.is_success()
    assert work.exception() is None
    assert all((tensor == 2).all() for tensor in tensors)
    assert work.result() == []
    assert future.wait() == []
    assert work.get_future_result().wait() == 0
    assert future.then(lambda f: sum(float(t.sum()) for t in tensors)).wait() == 10.0


@ranks(2, backend=None)
def test_failed_block():
    here = place()
    with group(timeout=timedelta(milliseconds=700)):
        dist.barrier()
        if here.rank == 0:
            work = end_of_block(lambda: dist.all_reduce(torch.ones(2), async_op=True))
            with pytest.raises(RuntimeError, match="(?i)timed out"):
                work.wait()
            assert work.is_completed()
            assert not work.is_success()
            assert "rank 1" in str(work.exception())
            with pytest.raises(RuntimeError, match="(?i)timed out"):
                work.get_future().wait()
            assert work.get_future_result().wait() == 1
            here.store.set("failed", "1")
        else:
            here.store.wait(["failed"])


@ranks(2)
def test_a_block_that_raises_does_not_spoil_the_next():
    here = place()
    dist.group.WORLD._start_coalescing(CPU)
    missing = torch.zeros(1)
    if here.rank == 0:
        dist.irecv(missing, 1)  # goes on after its block is gone
    shown = torch.full((5,), float(here.rank))
    work = end_of_block(lambda: dist.broadcast(shown, 1, async_op=True))
    assert work.wait(timedelta(seconds=10))
    assert (shown == 1).all()
    if here.rank == 1:
        dist.send(torch.ones(1), 0)
    with pytest.raises(RuntimeError, match=r"endCoalescing\(\) without startCoalescing"):
        dist.group.WORLD._end_coalescing(CPU)
    dist.barrier()


@ranks(2)
def test_a_block_that_raises_keeps_no_tensors():
    """It cannot be told from one that goes on, and so sees all later calls."""
    dist.group.WORLD._start_coalescing(CPU)
    seen = []
    for _ in range(100):
        tensor = torch.ones(1000)
        seen.append(weakref.ref(tensor))
        dist.broadcast(tensor, 0)
        del tensor
    assert sum(tensor() is not None for tensor in seen) <= 3
    assert dist.group.WORLD._end_coalescing(CPU).wait()


@ranks(2, backend=None)
def test_a_long_block_tells_of_what_failed_long_ago():
    here = place()
    with group(timeout=timedelta(milliseconds=500)):
        dist.barrier()
        if here.rank == 0:
            dist.group.WORLD._start_coalescing(CPU)
            first = dist.all_reduce(torch.ones(2), async_op=True)
            with pytest.raises(RuntimeError, match="(?i)timed out"):
                first.wait()
            for _ in range(20):
                dist.all_reduce(torch.ones(2), async_op=True)
            work = dist.group.WORLD._end_coalescing(CPU)
            with pytest.raises(RuntimeError, match="(?i)timed out"):
                work.wait()
            assert not work.is_success()
            here.store.set("failed", "1")
        else:
            here.store.wait(["failed"])


@ranks(2, 3)
def test_batches_have_a_work_for_each_message():
    here = place()
    after, before = neighbours()
    received = torch.zeros(300_000)
    start = time.monotonic()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((300_000,), float(here.rank)), after),
            dist.P2POp(dist.irecv, received, before),
        ]
    )
    assert len(works) == 2
    for work in works:
        work.wait()
    assert time.monotonic() - start < 10
    assert (received == before).all()


@ranks(2)
def test_sequence_number_counts_the_calls_of_a_block():
    before = raw()._get_sequence_number_for_group()
    after, behind = neighbours()

    def calls():
        dist.broadcast(torch.ones(1), 0, async_op=True)
        dist.isend(torch.ones(1), after)
        dist.irecv(torch.ones(1), behind)

    end_of_block(calls).wait()
    assert raw()._get_sequence_number_for_group() == before + 1
