"""What torch offers to look inside: its debug wrapper, its profiler, names and capabilities."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from dist.pool import ranks
from dist.worker import group, place
from dist.wrong import raw


@contextlib.contextmanager
def detail():
    """A group that is wrapped: calls are compared over gloo first, then handed on."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with group():
            assert type(raw()).__name__ == "_ProcessGroupWrapper"
            yield
    finally:
        dist.set_debug_level(before)


def pair(value=0.0):
    return [torch.full((2,), value) for _ in range(2)]


def check_gather(root):
    outputs = pair() if root else None
    dist.gather(torch.full((2,), place().rank + 1.0), outputs, dst=0)
    return [output.tolist() for output in outputs or []]


def check_scatter(root):
    tensor = torch.zeros(2)
    dist.scatter(tensor, [torch.full((2,), 5.0), torch.full((2,), 6.0)] if root else None, src=0)
    return tensor.tolist()


def outcome(call, result):
    call(result)
    return result.tolist()


def functional_gather():
    output = torch.zeros(4)
    dist.group.WORLD.allgather_into_tensor_coalesced([output], [torch.ones(2)]).wait()
    return output.tolist()


def functional_scatter():
    output = torch.zeros(2)
    dist.group.WORLD.reduce_scatter_tensor_coalesced([output], [torch.ones(4)]).wait()
    return output.tolist()


# What each gives on rank 0 and on rank 1.
CALLS = {
    "all_reduce": (lambda root: outcome(dist.all_reduce, torch.ones(2)), [2.0] * 2, [2.0] * 2),
    "broadcast": (
        lambda root: outcome(lambda t: dist.broadcast(t, 0), torch.full((2,), 1.0 + (not root))),
        [1.0] * 2,
        [1.0] * 2,
    ),
    "reduce": (
        lambda root: outcome(lambda t: dist.reduce(t, 0), torch.ones(2))[: 2 * root],
        [2.0, 2.0],
        [],
    ),
    "all_gather": (
        lambda root: outcome(lambda t: dist.all_gather(list(t), torch.ones(2)), torch.zeros(2, 2)),
        [[1.0] * 2] * 2,
        [[1.0] * 2] * 2,
    ),
    "all_gather_into_tensor": (
        lambda root: outcome(
            lambda t: dist.all_gather_into_tensor(t, torch.ones(2)), torch.zeros(4)
        ),
        [1.0] * 4,
        [1.0] * 4,
    ),
    "reduce_scatter": (
        lambda root: outcome(lambda t: dist.reduce_scatter(t, pair(3.0)), torch.zeros(2)),
        [6.0] * 2,
        [6.0] * 2,
    ),
    "reduce_scatter_tensor": (
        lambda root: outcome(
            lambda t: dist.reduce_scatter_tensor(t, torch.ones(4)), torch.zeros(2)
        ),
        [2.0] * 2,
        [2.0] * 2,
    ),
    "gather": (check_gather, [[1.0] * 2, [2.0] * 2], []),
    "scatter": (check_scatter, [5.0] * 2, [6.0] * 2),
    "all_to_all_single": (
        lambda root: outcome(
            lambda t: dist.all_to_all_single(t, torch.full((2,), 1.0 + (not root))),
            torch.zeros(2),
        ),
        [1.0, 2.0],
        [1.0, 2.0],
    ),
    "all_to_all": (
        lambda root: outcome(
            lambda t: dist.all_to_all(list(t), pair(1.0 + (not root))), torch.zeros(2, 2)
        ),
        [[1.0] * 2, [2.0] * 2],
        [[1.0] * 2, [2.0] * 2],
    ),
    "coalesced": (
        lambda root: outcome(lambda t: dist.all_reduce_coalesced([t]), torch.ones(2)),
        [2.0] * 2,
        [2.0] * 2,
    ),
    "functional all_gather": (lambda root: functional_gather(), [1.0] * 4, [1.0] * 4),
    "functional reduce_scatter": (lambda root: functional_scatter(), [2.0] * 2, [2.0] * 2),
    "barrier": (lambda root: dist.barrier(), None, None),
}


@pytest.mark.parametrize("name", CALLS)
@ranks(2, backend=None)
def test_detail_mode_hands_calls_on(name):
    call, *expected = CALLS[name]
    with detail():
        rank = place().rank
        for _ in range(2):  # the wrapper compares the numbers of calls, too
            assert call(rank == 0) == expected[rank]


@ranks(2, backend=None)
def test_detail_mode_does_not_count_messages():
    here = place()
    with detail():
        for _ in range(3):
            if here.rank == 0:
                dist.send(torch.ones(2), 1)
                dist.send(torch.ones(2), 1)
            else:
                dist.recv(torch.zeros(2), 0)
                dist.recv(torch.zeros(2))
            dist.all_reduce(torch.ones(1))


@ranks(3, backend=None)
def test_detail_mode_compares_after_messages_between_some():
    with detail():
        if place().rank < 2:
            work = dist.isend(torch.ones(1), 1 - place().rank)
            dist.recv(torch.zeros(1), 1 - place().rank)
            work.wait()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 3


@pytest.mark.parametrize("kind", ["size", "call"])
@ranks(2, backend=None)
def test_detail_mode_names_a_mismatch(kind):
    here = place()
    with detail():
        dist.barrier()
        with pytest.raises(
            RuntimeError, match=r"(?s)Detected mismatch between collectives on ranks.*ALLREDUCE"
        ):
            if kind == "size":
                dist.all_reduce(torch.ones(3 + here.rank))
            elif here.rank == 0:
                dist.all_reduce(torch.ones(3))
            else:
                dist.reduce(torch.ones(3), 0)


def profiled(call, **arguments):
    """The events of ours that the profiler has seen, and the whole trace."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, **arguments) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())["traceEvents"]
    return {event.name: event for event in profiler.events() if "ringcomm:" in event.name}, trace


def profiled_calls():
    here = place()
    root = here.rank == 0
    tensor, both = torch.ones(3), [torch.zeros(3), torch.zeros(3)]
    return {
        "all_reduce": (lambda: dist.all_reduce(tensor), [[3]]),
        "broadcast": (lambda: dist.broadcast(tensor, 0), [[3]]),
        "reduce": (lambda: dist.reduce(tensor, 0), [[3]]),
        "all_gather": (lambda: dist.all_gather(both, tensor), [[3]]),
        "reduce_scatter": (
            lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.ones(6)),
            [[6]],
        ),
        "gather": (lambda: dist.gather(tensor, both if root else None, dst=0), [[3]]),
        "scatter": (
            lambda: dist.scatter(tensor, both if root else None, src=0),
            [[3], [3]] if root else [],
        ),
        "all_to_all": (lambda: dist.all_to_all_single(torch.zeros(4), torch.ones(4)), [[4]]),
        "barrier": (dist.barrier, []),
    }


NAMES = "all_reduce broadcast reduce all_gather reduce_scatter gather scatter all_to_all barrier"


@pytest.mark.parametrize("name", NAMES.split())
@ranks(2)
def test_profiler_shows_the_collective_and_its_shapes(name):
    call, shapes = profiled_calls()[name]
    events, _ = profiled(call)
    assert list(events) == [f"ringcomm:{name}"]
    assert list(events[f"ringcomm:{name}"].input_shapes) == shapes


@ranks(2)
def test_profiler_shows_messages():
    def messages():
        if place().rank == 0:
            dist.send(torch.ones(4), 1)
            dist.send(torch.ones(5), 1)
        else:
            dist.recv(torch.zeros(4), 0)
            dist.recv(torch.zeros(5))

    events, _ = profiled(messages)
    if place().rank == 0:
        assert set(events) == {"ringcomm:send"}
    else:
        assert events["ringcomm:recv"].input_shapes == [[4]]
        assert events["ringcomm:recvAnySource"].input_shapes == [[5]]


@ranks(2)
def test_profiler_shows_asynchronous_calls_to_their_end():
    here = place()
    if here.rank == 1:
        here.store.wait(["called"])

    def reduce():
        work = dist.all_reduce(torch.ones(8), async_op=True)
        here.store.set("called", "1")
        work.wait()

    events, _ = profiled(reduce)
    assert events["ringcomm:all_reduce"].is_async


@ranks(2)
def test_traces_tell_the_parameters_of_calls():
    def calls():
        dist.all_reduce(torch.ones(1000))
        dist.all_gather_into_tensor(torch.zeros(20), torch.ones(10))
        output = torch.zeros(4 if place().rank == 0 else 2)
        dist.all_to_all_single(output, torch.ones(3), [output.numel() // 2] * 2, [2, 1])
        if place().rank == 0:
            dist.send(torch.ones(6, dtype=torch.int32), 1)
        else:
            dist.recv(torch.zeros(6, dtype=torch.int32), 0)

    _, trace = profiled(calls)
    found = [event["args"] for event in trace if event.get("name") == "record_param_comms"]
    assert [args["Collective name"] for args in found] == [
        "all_reduce",
        "all_gather",
        "all_to_all",
        "send" if place().rank == 0 else "recv",
    ]
    assert [args["In msg nelems"] for args in found] == [1000, 10, 3, 6]
    assert [args["Out msg nelems"] for args in found[:2]] == [1000, 20]
    assert [args["dtype"] for args in found] == ["Float", "Float", "Float", "Int"]
    assert all(args["Group size"] == 2 for args in found)
    assert all(args["Process Group Name"] == "0" for args in found)
    assert found[2]["In split size"] == "[2, 1]"


@ranks(2)
def test_names():
    assert dist.get_backend() == "ringcomm"
    backend = raw()
    assert backend.name() == "ringcomm"
    assert backend.size() == 2
    assert backend.rank() == place().rank
    assert not backend.supports_coalescing
    assert not backend.supports_time_estimate


@ranks(2)
def test_error_state():
    assert raw().get_error().name == "SUCCESS"
