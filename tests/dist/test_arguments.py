"""Wrong calls: a ValueError or TypeError that names what is wrong, and a group that goes on."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import group, place


def raw():
    """The backend itself: torch's own functions check some arguments before it sees them."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def assert_group_works():
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [float(place().world)] * 3


def options(kind, **fields):
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


CALLS = {
    "all_reduce-meta": (
        lambda: raw().allreduce([torch.empty(3, device="meta")]),
        r"all_reduce: .*device.*meta",
    ),
    "all_reduce-two-tensors": (
        lambda: raw().allreduce([torch.ones(1), torch.ones(1)], dist.AllreduceOptions()),
        r"all_reduce: .*single-element.*2",
    ),
    "all_reduce-no-tensor": (
        lambda: raw().allreduce([], dist.AllreduceOptions()),
        r"all_reduce: .*single-element.*0",
    ),
    "broadcast-root-too-large": (
        lambda: raw().broadcast([torch.ones(1)], options(dist.BroadcastOptions, rootRank=2)),
        r"broadcast: .*root.*2.*allowed: 0 to 1",
    ),
    "broadcast-root-negative": (
        lambda: raw().broadcast([torch.ones(1)], options(dist.BroadcastOptions, rootRank=-1)),
        r"broadcast: .*root.*-1.*allowed: 0 to 1",
    ),
    "broadcast-root-tensor": (
        lambda: raw().broadcast(
            [torch.ones(1)], options(dist.BroadcastOptions, rootRank=0, rootTensor=1)
        ),
        r"broadcast: .*root tensor.*1.*allowed: 0",
    ),
    "all_gather-short-list": (
        lambda: dist.all_gather([torch.ones(1)], torch.ones(1)),
        r"all_gather: .*list.* 1 .* 2 ranks",
    ),
    "all_gather-long-list": (
        lambda: dist.all_gather([torch.ones(1) for _ in range(3)], torch.ones(1)),
        r"all_gather: .*list.* 3 .* 2 ranks",
    ),
    "all_gather-size": (
        lambda: dist.all_gather([torch.ones(3), torch.ones(3)], torch.ones(2)),
        r"all_gather: .*size.* 2 elements, .* 3 ",
    ),
    "into-size": (
        lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(2)),
        r"all_gather.*: .*size.* 4 elements, .* 5 ",
    ),
    "into-dtype": (
        lambda: raw()._allgather_base(torch.ones(4, dtype=torch.int32), torch.ones(2)),
        r"all_gather.*: .*type.*Float.*Int",
    ),
    "coalesced-empty": (
        lambda: raw().allreduce_coalesced([], dist.AllreduceCoalescedOptions()),
        r"all_reduce.*: .*non-empty",
    ),
    "coalesced-mixed-dtypes": (
        lambda: raw().allreduce_coalesced([torch.ones(1), torch.ones(1).int()]),
        r"all_reduce.*: .*type.*Float.*Int",
    ),
}


@pytest.mark.parametrize("call", CALLS)
@ranks(2)
def test_wrong_argument_is_named(call):
    function, text = CALLS[call]
    with pytest.raises((ValueError, TypeError), match=text) as error:
        function()
    assert str(error.value).startswith("ringcomm: ")
    assert_group_works()


@ranks(2)
def test_all_gather_of_mixed_dtypes():
    with pytest.raises((ValueError, TypeError), match=r"type"):
        dist.all_gather([torch.ones(1), torch.ones(1).int()], torch.ones(1))
    assert_group_works()


@ranks(2)
def test_all_reduce_of_a_dtype_that_is_only_moved():
    tensor = torch.ones(3).to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match=r"sum is not defined .*float8_e4m3fn"):
        dist.all_reduce(tensor)
    assert_group_works()


@ranks(2)
def test_quantized_tensor_is_refused():
    tensor = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    with pytest.raises(TypeError, match=r"dtype"):
        raw().allreduce([tensor])
    assert_group_works()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@ranks(2)
def test_without_a_cuda_device_torch_says_so():
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):
        dist.all_reduce(torch.ones(1, device="cuda"))
    assert_group_works()


MISMATCHES = {
    "size": lambda rank: dist.all_reduce(torch.ones(10 + rank)),
    "dtype": lambda rank: dist.all_reduce(torch.ones(10, dtype=[torch.int32, torch.float32][rank])),
    "op": lambda rank: dist.all_reduce(
        torch.ones(10), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank]
    ),
    # Two roots both only send.
    "root": lambda rank: (dist.broadcast(torch.ones(10), rank), dist.barrier()),
    "collective": lambda rank: dist.barrier() if rank else dist.all_reduce(torch.ones(10)),
    "large-size": lambda rank: dist.all_reduce(torch.ones(1_000_000 + rank)),
    "avg-and-sum": lambda rank: dist.all_reduce(
        torch.ones(10).half(), [dist.ReduceOp.SUM, dist.ReduceOp.AVG][rank]
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
@ranks(2, backend=None, timeout=12)
def test_ranks_that_call_different_things_are_told(what):
    """An error on both ranks that shows both calls, within seconds instead of a hang."""
    with group():
        dist.barrier()
        start = time.monotonic()
        with pytest.raises((ValueError, RuntimeError)) as error:
            MISMATCHES[what](place().rank)
        assert time.monotonic() - start < 5
        assert "rank" in str(error.value)
        shown = str(error.value)
        calls = {"root": ["root"], "collective": ["barrier", "all_reduce"]}
        for text in calls.get(what, ["all_reduce #"]):
            assert text in shown
