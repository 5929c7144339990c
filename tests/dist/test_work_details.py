"""What Work objects tell besides their state: durations, limits, sources, values of futures."""

from __future__ import annotations

import gc
import resource
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import group, place
from dist.wrong import raw

TORCH_MINOR = tuple(int(part) for part in torch.__version__.split(".")[:2])


@ranks(2)
def test_duration():
    here = place()
    dist.barrier()
    if here.rank == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        with pytest.raises(RuntimeError, match="not completed"):
            work._get_duration()
        here.store.set("called", "1")
    else:
        here.store.wait(["called"])
        time.sleep(0.3)
        work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    low, high = (290, 5000) if here.rank == 0 else (0.001, 250)
    assert low < work._get_duration() < high
    dist.group.WORLD._enable_collectives_timing()


@pytest.mark.skipif(TORCH_MINOR < (2, 14), reason="torch asks for it from 2.14 on")
@ranks(2)
def test_limit():
    assert dist.all_reduce(torch.ones(1), async_op=True).timeout == timedelta(seconds=15)


@ranks(2)
def test_values_of_futures():
    """Flat lists of the very tensors that were given, as gloo's are."""
    here = place()
    root = here.rank == 0
    mine = torch.ones(2)
    parts = [torch.zeros(2), torch.zeros(2)]
    one, wide = torch.zeros(2), torch.zeros(4)
    wides = [torch.zeros(4), torch.zeros(2)]
    cases = [
        (dist.all_reduce(mine, async_op=True), [mine]),
        (dist.broadcast(mine, 0, async_op=True), [mine]),
        (dist.reduce(mine, 0, async_op=True), [mine]),
        (dist.all_gather(parts, mine, async_op=True), parts),
        (dist.all_gather_into_tensor(wide, mine, async_op=True), [wide]),
        (
            dist.group.WORLD.allgather_into_tensor_coalesced(
                wides, [torch.ones(2), torch.ones(1)]
            ),
            wides,
        ),
        (dist.reduce_scatter(one, [mine, mine], async_op=True), [one]),
        (dist.reduce_scatter_tensor(one, torch.ones(4), async_op=True), [one]),
        (
            dist.gather(mine, parts if root else None, dst=0, async_op=True),
            parts if root else [],
        ),
        (dist.scatter(one, [mine, mine] if root else None, src=0, async_op=True), [one]),
        (dist.all_to_all_single(wide, torch.ones(4), async_op=True), [wide]),
        (dist.all_to_all(parts, [mine, mine], async_op=True), parts),
        (dist.barrier(async_op=True), []),
    ]
    for work, expected in cases:
        value = work.get_future().wait()
        assert [tensor.data_ptr() for tensor in value] == [one.data_ptr() for one in expected]
        work.wait()
        assert [t.data_ptr() for t in work.result()] == [t.data_ptr() for t in expected]
        assert work.get_future_result().wait() == 0


@ranks(3)
def test_source_of_messages():
    here = place()
    if here.rank == 0:
        seen = set()
        for _ in range(2):
            work = raw().recv_anysource([torch.zeros(2)], 0)
            work.wait()
            seen.add(work._source_rank())
        assert seen == {1, 2}
        work = dist.irecv(torch.zeros(1), 2, tag=5)
        work.wait()
        assert work._source_rank() == 2
    else:
        dist.send(torch.ones(2), 0)
        if here.rank == 2:
            dist.send(torch.ones(1), 0, tag=5)


@ranks(2, backend=None)
def test_result_codes_of_failures():
    here = place()
    with group("late", timeout=timedelta(milliseconds=700)):
        dist.barrier()
        if here.rank == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            assert work.get_future_result().wait() == 1
            assert raw().get_error().name == "TIMEOUT"
            here.store.set("late", "1")
        else:
            here.store.wait(["late"])
    with group("aborted"):
        dist.barrier()
        if here.rank == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            raw().abort()
            raw().abort()
            assert work.get_future_result().wait() == 2
            assert raw().get_error().name == "COMM_ERROR"
            here.store.set("aborted", "1")
        else:
            here.store.wait(["aborted"])


@ranks(2, backend=None)
def test_shutdown_ends_what_is_in_flight_and_is_idempotent():
    here = place()
    with group():
        dist.barrier()
        if here.rank == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            raw().shutdown()
            raw().shutdown()
            raw().abort()
            with pytest.raises(RuntimeError):
                work.wait()
            here.store.set("shut", "1")
        else:
            here.store.wait(["shut"])


@ranks(2, backend=None)
def test_sequence_number_starts_at_zero_and_counts_calls():
    here = place()
    with group():
        count = raw()._get_sequence_number_for_group
        assert count() == 0
        for i in range(3):
            dist.all_reduce(torch.ones(2))
            assert count() == i + 1
        if here.rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
        assert count() == 3
        dist.all_reduce_coalesced([torch.ones(2), torch.ones(3), torch.ones(4)])
        assert count() == 4
        dist.all_reduce(torch.eye(3).to_sparse())
        assert count() == 5


@ranks(2)
def test_eager_connection_and_splits_without_this_rank_need_nothing():
    raw().eager_connect_single_device(torch.device("cpu"))
    assert raw().perform_nocolor_split(torch.device("cpu")) is None


@ranks(2)
def test_barrier_waits_for_strided_results():
    base = torch.zeros(2_000_000, 2)
    base[:, 0] = 1
    dist.all_reduce(base[:, 0], async_op=True)
    dist.barrier()
    assert int((base[:, 0] != 2).sum()) == 0


@ranks(2)
def test_future_of_a_barrier_comes_after_strided_results():
    base = torch.ones(500_000, 3)
    for column in range(3):
        dist.all_reduce(base[:, column], async_op=True)
    dist.barrier(async_op=True).get_future().wait()
    assert int((base != 2).sum()) == 0


@ranks(2)
def test_finished_works_keep_no_temporaries():
    here = place()

    def resident():
        gc.collect()
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()

    # So large that the allocator takes each piece from the system and gives it back.
    base = torch.ones(10_000_000, 2)
    dist.all_reduce(base[:, 0])
    before = resident()
    works = []
    for _ in range(3):
        works.append(dist.all_reduce(base[:, 0], async_op=True))
        works[-1].wait()
    grown = resident() - before
    assert len(works) == 3
    assert grown < 30 << 20, f"rank {here.rank}: {grown >> 20} MiB"


@ranks(2, timeout=30)
def test_two_threads_make_groups_over_one_store():
    here = place()
    started = time.monotonic()
    groups, failures = {}, []

    def join(name):
        try:
            store = dist.PrefixStore(name, here.store)
            groups[name] = make_backend(name, store)
        except BaseException as error:
            failures.append(error)

    names = ["x", "y"] if here.rank == 0 else ["y", "x"]
    threads = [threading.Thread(target=join, args=(name,)) for name in names]
    threads[0].start()
    time.sleep(0.4)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert not failures
    assert time.monotonic() - started < 5
    for name in ("x", "y"):
        tensor = torch.ones(2)
        groups[name].allreduce([tensor]).wait()
        assert tensor.tolist() == [2.0] * 2


def make_backend(name, store):
    import ringcomm

    here = place()
    options = ringcomm.Options(timeout=timedelta(seconds=10))
    return ringcomm._C.RingBackend(
        store=store, rank=here.rank, size=here.world, options=options, group_name=name
    )
