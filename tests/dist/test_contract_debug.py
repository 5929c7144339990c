"""torch's own checks of collectives over the backend: its DETAIL wrapper and its profiler."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from dist.pool import ranks
from dist.worker import group, place
from dist.wrong import raw

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
MISMATCH = r"(?s)Detected mismatch between collectives on ranks.*SequenceNumber"


@contextlib.contextmanager
def detail(**arguments):
    """The process group in the wrapper that TORCH_DISTRIBUTED_DEBUG=DETAIL puts around it."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with group(**arguments):
            yield
    finally:
        dist.set_debug_level(before)


# What rank 1 calls while rank 0 calls all_reduce of 20 x 10 floats, and what the wrapper calls it.
DIFFERENT = {
    "reduce": (lambda: dist.reduce(torch.ones(20, 10), 0), "REDUCE"),
    "barrier": (lambda: dist.barrier(), "BARRIER"),
    "broadcast": (lambda: dist.broadcast(torch.ones(20, 10), 0), "BROADCAST"),
    "shape": (lambda: dist.all_reduce(torch.ones(20, 2)), "ALLREDUCE"),
    "dimensions": (lambda: dist.all_reduce(torch.ones(20, 10, 2)), "ALLREDUCE"),
    "dtype": (lambda: dist.all_reduce(torch.ones(20, 10).long()), "ALLREDUCE"),
}


@pytest.mark.parametrize("other", DIFFERENT)
@ranks(2, backend=None)
def test_wrapper_reports_what_differs(other):
    call, name = DIFFERENT[other]
    if place().rank == 0:
        call, name = (lambda: dist.all_reduce(torch.ones(20, 10))), "ALLREDUCE"
    with detail():
        works = [dist.all_reduce(torch.ones(20, 10), async_op=True) for _ in range(100)]
        for work in works:
            work.wait()
        with pytest.raises(RuntimeError, match=MISMATCH) as error:
            call()
        assert f"OpType={name}" in str(error.value)


@ranks(2, backend=None)
def test_wrapper_takes_messages_for_no_collective():
    """Only rank 0 sends and only rank 1 receives: the numbers that it compares stay equal."""
    with detail():
        for step in range(3):
            if place().rank == 0:
                dist.send(torch.full((2,), float(step)), 1)
            else:
                dist.recv(received := torch.empty(2), 0)
                assert received.tolist() == [step] * 2
            dist.all_reduce(total := torch.ones(1))
            assert total.item() == 2


@ranks(2, backend=None)
def test_wrapper_lets_uneven_all_to_all_pass():
    rank = place().rank
    with detail():
        send = torch.full((3 - 2 * rank,), float(rank))
        sizes = [[0, 3], [0, 1]][rank]
        wanted = [[0, 0], [3, 1]][rank]
        output = torch.empty(sum(wanted))
        dist.all_to_all_single(output, send, wanted, sizes)
        assert output.tolist() == [[], [0, 0, 0, 1]][rank]


@ranks(3, backend=None)
def test_wrapper_names_the_rank_that_does_not_call():
    here = place()
    with detail(timeout=timedelta(seconds=3)):
        dist.barrier()
        if here.rank != 1:
            text = "Ranks 1 failed to pass monitoredBarrier" if here.rank == 0 else ""
            with pytest.raises(RuntimeError, match=text):
                dist.all_reduce(torch.ones(20, 10))
        else:
            here.store.wait(["reported"], timedelta(seconds=20))
        if here.rank == 0:
            here.store.set("reported", "yes")


@ranks(2, backend=None)
def test_wrapper_ends_what_it_wraps():
    with detail():
        wrapper = raw()
        assert isinstance(wrapper, dist.distributed_c10d._ProcessGroupWrapper)
        assert wrapper.wrapped_pg.name() == "ringcomm"
        dist.barrier()
        dist.destroy_process_group()
        with pytest.raises(RuntimeError, match="destroyed"):
            wrapper.wrapped_pg.allreduce([torch.ones(1)]).wait()


@ranks(2)
def test_profiler_names_every_operation_and_the_shapes_of_its_inputs():
    here = place()
    one, many = torch.ones(3, 5), [torch.ones(3, 5) for _ in range(2)]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        dist.all_reduce(one)
        dist.broadcast(one, 0)
        dist.reduce(one, 0)
        dist.all_gather(many, one)
        dist.gather(one, many if here.rank == 0 else None)
        dist.scatter(one, many if here.rank == 0 else None)
        dist.reduce_scatter(one, many)
        dist.all_to_all(many, [torch.ones(3, 5) for _ in range(2)])
        dist.barrier()
        if here.rank == 0:
            dist.send(one, 1)
            dist.send(one, 1)
        else:
            dist.recv(one, 0)
            dist.recv(one)
    events = {event.name: event for event in seen.events() if event.name.startswith("ringcomm:")}
    names = ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter"]
    names += ["reduce_scatter", "all_to_all", "barrier"]
    names += ["send"] if here.rank == 0 else ["recv", "recvAnySource"]
    assert sorted(events) == sorted(f"ringcomm:{name}" for name in names)
    for name in ("all_reduce", "broadcast", "reduce", "all_gather", "gather", names[-1]):
        assert events[f"ringcomm:{name}"].input_shapes == [[3, 5]], name


@pytest.mark.skipif(TORCH < (2, 14), reason="torch checks for NaN from 2.14 on")
@ranks(2, backend=None)
def test_check_for_nan():
    os.environ["TORCH_DIST_NAN_CHECK"] = "1"
    try:
        with group():
            dist.all_reduce(torch.ones(3))
            with pytest.raises(RuntimeError, match=r"(?i)nan"):
                dist.all_reduce(torch.full((3,), float("nan")))
    finally:
        del os.environ["TORCH_DIST_NAN_CHECK"]
