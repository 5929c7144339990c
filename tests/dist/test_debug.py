"""What torch offers to look inside: its debug wrapper, its profiler, names and capabilities."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from dist.pool import ranks
from dist.worker import group, place


@ranks(2, backend=None)
def test_debug_detail():
    """The wrapper compares calls over gloo first, then hands them on."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with group():
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [2.0] * 3
            outputs = [torch.zeros(3) for _ in range(2)]
            dist.all_gather(outputs, tensor)
            assert outputs[1].tolist() == [2.0] * 3
            dist.broadcast(tensor, 1)
            dist.barrier()
            with pytest.raises(RuntimeError, match="mismatch"):
                dist.all_reduce(torch.ones(3 + place().rank))
    finally:
        dist.set_debug_level(before)


@ranks(2)
def test_profiler_shows_the_collectives():
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        dist.all_reduce(torch.ones(1000))
        dist.all_reduce(torch.ones(1000), async_op=True).wait()
        dist.broadcast(torch.ones(10), 0)
        dist.all_gather_into_tensor(torch.ones(20), torch.ones(10))
        dist.barrier()
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["ringcomm:all_reduce"] == 2
    assert counts["ringcomm:broadcast"] == 1
    assert counts["ringcomm:all_gather"] == 1
    assert counts["ringcomm:barrier"] == 1


@ranks(2)
def test_names():
    assert dist.get_backend() == "ringcomm"
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.name() == "ringcomm"
    assert backend.size() == 2
    assert backend.rank() == place().rank


@ranks(2)
def test_error_state():
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.get_error().name == "SUCCESS"
