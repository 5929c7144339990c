"""Work objects: asynchronous calls, waiting, timeouts, futures and their callbacks, threads."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import agree, group, place


def raw():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


@pytest.mark.parametrize("count", [1, 1000, 1_000_000])
@ranks(1, 2, 3)
def test_asynchronous_all_reduce(count):
    here = place()
    tensor = torch.full((count,), float(here.rank + 1))
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0].data_ptr() == tensor.data_ptr()
    assert (tensor == here.world * (here.world + 1) / 2).all()
    assert work.wait(timedelta(seconds=1)) is True


@ranks(2)
def test_state_before_the_peer_has_called():
    here = place()
    dist.barrier()
    tensor = torch.ones(5)
    if here.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        assert not work.is_success()
        with pytest.raises(RuntimeError, match="not completed"):
            work.result()
        here.store.set("looked", "1")
    else:
        here.store.wait(["looked"])
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert tensor.tolist() == [2.0] * 5


@ranks(2)
def test_completes_without_anybody_waiting():
    tensor = torch.ones(300_000)
    work = dist.all_reduce(tensor, async_op=True)
    limit = time.monotonic() + 5
    while not work.is_completed():
        assert time.monotonic() < limit
        time.sleep(0.001)
    assert (tensor == 2).all()


@ranks(2, 3)
def test_many_in_flight_complete_in_any_order_of_waiting():
    here = place()
    tensors = [torch.full((1 + i * 997,), float(here.rank + i)) for i in range(40)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i in [*range(39, -1, -2), *range(0, 40, 2)]:
        works[i].wait()
        total = here.world * (here.world - 1) / 2 + here.world * i
        assert (tensors[i] == total).all()


@pytest.mark.parametrize("count", [3, 200_000])
@ranks(2)
def test_two_operations_on_one_tensor_run_in_order(count):
    tensor = torch.full((count,), float(place().rank + 1))
    first = dist.all_reduce(tensor, async_op=True)
    second = dist.all_reduce(tensor, dist.ReduceOp.PRODUCT, async_op=True)
    second.wait()
    assert first.is_completed()
    assert (tensor == 9).all()


@ranks(2)
def test_dropped_handles_finish_before_a_barrier_returns():
    tensors = [torch.ones(50_000) for _ in range(20)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    gc.collect()
    dist.barrier()
    assert all((tensor == 2).all() for tensor in tensors)


@ranks(2)
def test_dropped_tensors_stay_alive_until_sent():
    here = place()
    results = []
    for i in range(20):
        output = torch.empty(2 * 50_000)
        work = dist.all_gather_into_tensor(
            output, torch.full((50_000,), float(here.rank + i)), async_op=True
        )
        torch.full((50_000,), -1.0)  # would reuse the memory if it had been freed
        results.append((work, output))
    for i, (work, output) in enumerate(results):
        work.wait()
        assert (output[:50_000] == i).all()
        assert (output[50_000:] == i + 1).all()


@ranks(2)
def test_wait_timeout_names_the_operation_and_leaves_it_running():
    here = place()
    tensor = torch.ones(4)
    if here.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=r"Timed out waiting 200ms .*all_reduce #\d+ \(4 x"):
            work.wait(timedelta(milliseconds=200))
        assert 0.19 < time.monotonic() - start < 1.5
        assert not work.is_completed()
        here.store.set("timed out", "1")
        assert work.wait()
    else:
        here.store.wait(["timed out"])
        dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 4


@pytest.mark.parametrize("count", [4, 500_000])
@ranks(2, backend=None)
def test_operation_timeout_is_told_to_both_ranks_and_names_the_late_one(count):
    here = place()
    with group(timeout=timedelta(seconds=1)):
        dist.barrier()
        start = time.monotonic()
        if here.rank == 0:
            with pytest.raises(RuntimeError, match=r"(?i)timed out.*rank 1"):
                dist.all_reduce(torch.ones(count))
            assert 0.9 < time.monotonic() - start < 3
        else:
            time.sleep(1.6)
        with pytest.raises(RuntimeError, match=r"(?i)timed out"):
            dist.all_reduce(torch.ones(count))
        assert time.monotonic() - start < 4


@ranks(2, backend=None)
def test_failed_work_tells_its_exception():
    here = place()
    with group(timeout=timedelta(milliseconds=600)):
        dist.barrier()
        if here.rank == 1:
            time.sleep(1)
        work = dist.all_reduce(torch.ones(3), async_op=True)
        future = work.get_future()
        with pytest.raises(RuntimeError, match=r"(?i)timed out"):
            work.wait()
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(RuntimeError, match=r"(?i)timed out"):
            future.wait()
        with pytest.raises(RuntimeError, match=r"(?i)timed out"):
            raise RuntimeError(str(work.exception()))


@ranks(2, 3)
def test_issued_from_several_threads():
    """One thread a group: torch asks for one order a group, not for one thread a process."""
    here = place()
    groups = [dist.new_group(backend="ringcomm") for _ in range(4)]
    failures = []

    def work(index):
        try:
            for step in range(25):
                tensor = torch.full((1 + 300 * step,), float(here.rank + index))
                dist.all_reduce(tensor, group=groups[index])
                expected = here.world * (here.world - 1) / 2 + here.world * index
                assert (tensor == expected).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not failures
    for one in groups:
        dist.destroy_process_group(one)


@ranks(2)
def test_several_threads_wait_for_works_of_one_group():
    tensors = [torch.ones(1 + 5000 * i) for i in range(16)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    done = []

    def wait(index):
        works[index].wait()
        done.append(bool((tensors[index] == 2).all()))

    threads = [threading.Thread(target=wait, args=(index,)) for index in reversed(range(16))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert done == [True] * 16


@ranks(2)
def test_other_python_threads_run_while_one_waits():
    here = place()
    if here.rank == 1:
        here.store.wait(["counted"])
    count = 0

    def run():
        nonlocal count
        while count < 50:
            time.sleep(0.001)
            count += 1
        here.store.set("counted", "1")

    thread = threading.Thread(target=run)
    if here.rank == 0:
        thread.start()
    dist.all_reduce(torch.ones(2))  # rank 1 comes only when the thread has counted
    if here.rank == 0:
        thread.join()
        assert count == 50


@ranks(2)
def test_future_gives_the_tensors():
    tensor = torch.ones(3)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    (result,) = future.wait()
    assert result.data_ptr() == tensor.data_ptr()
    assert result.tolist() == [2.0] * 3
    assert future.done()
    chained = future.then(lambda f: f.value()[0] * 2).then(lambda f: f.value() + 1)
    assert chained.wait().tolist() == [5.0] * 3


@ranks(2)
def test_future_of_a_completed_work():
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert work.get_future().wait()[0].tolist() == [2.0] * 3
    assert work.get_future_result().wait() == 0


@ranks(2)
def test_future_of_a_strided_result_is_complete():
    base = torch.ones(1000, 2)
    future = dist.all_reduce(base[:, 0], async_op=True).get_future()
    assert future.then(lambda f: float(f.value()[0].sum())).wait() == 2000.0
    assert float(base[:, 1].sum()) == 1000.0


@pytest.mark.parametrize("count", [8, 100_000])
@ranks(2, 3)
def test_callback_issues_and_waits_for_a_collective_of_the_same_group(count):
    here = place()

    def again(future):
        tensor = future.value()[0]
        dist.all_reduce(tensor)
        return tensor

    future = dist.all_reduce(torch.ones(count), async_op=True).get_future().then(again)
    assert (future.wait() == here.world**2).all()


@ranks(2, timeout=30)
def test_fifty_callbacks_that_wait_at_once():
    """Each waits for a collective that its peer's callback has to issue: all at the same time."""
    here = place()
    groups = [dist.new_group(backend="ringcomm") for _ in range(50)]

    def again(group):
        def callback(future):
            tensor = future.value()[0]
            dist.all_reduce(tensor, group=group)
            return tensor

        return callback

    held = dist.all_reduce(torch.ones(1), async_op=True)
    futures = []
    for one in groups:
        work = dist.all_reduce(torch.ones(3), async_op=True, group=one)
        futures.append(work.get_future().then(again(one)))
    held.wait()
    for future in futures:
        assert future.wait().tolist() == [float(here.world**2)] * 3
    for one in groups:
        dist.destroy_process_group(one)


@ranks(2, timeout=30)
def test_fifty_callbacks_of_one_group():
    """In one group the order of calls is the caller's to keep: a lock and one size for all."""
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(50)]
    done = []

    def again(future):
        tensor = future.value()[0].clone()
        dist.all_reduce(tensor)
        done.append(tensor.tolist())
        return tensor

    futures = [work.get_future().then(again) for work in works]
    for future in futures:
        assert future.wait().tolist() == [4.0] * 4
    assert done == [[4.0] * 4] * 50


@ranks(2)
def test_callback_that_raises_ends_only_its_own_future():
    def fail(_):
        raise ValueError("out of paper")

    future = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(fail)
    with pytest.raises(RuntimeError, match="out of paper"):
        future.wait()
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 2


@ranks(2)
def test_sequence_number_counts_collectives():
    here = place()
    backend = raw()
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(2))
    assert backend._get_sequence_number_for_group() == before + 1
    dist.barrier()
    dist.broadcast(torch.ones(2), 0)
    dist.all_gather_into_tensor(torch.ones(2 * here.world), torch.ones(2))
    assert backend._get_sequence_number_for_group() == before + 4
    with pytest.raises(TypeError):
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
    assert backend._get_sequence_number_for_group() == before + 4
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
    after = backend._get_sequence_number_for_group()
    assert after > before + 4
    agree(after)


@ranks(2, backend=None)
def test_abort_ends_what_is_in_flight_on_both_ranks():
    here = place()
    with group():
        dist.barrier()
        start = time.monotonic()
        if here.rank == 0:
            work = dist.all_reduce(torch.ones(3), async_op=True)
            time.sleep(0.1)
            raw().abort()
            with pytest.raises(RuntimeError, match=r"rank 0.*abort"):
                work.wait()
        else:
            time.sleep(0.5)
        with pytest.raises(RuntimeError, match=r"rank 0.*abort"):
            dist.all_reduce(torch.ones(3))
        assert time.monotonic() - start < 3
