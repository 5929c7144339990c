"""all_to_all and all_to_all_single: every element arrives where it belongs, whatever the splits."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ringcomm
from dist.pool import ranks
from dist.test_gather_broadcast import MOVED, bits, part_of
from dist.worker import group, place
from dist.wrong import assert_refused, assert_told, raw


def message(sender, receiver, count, dtype="int32"):
    return part_of(100 * sender + receiver, count, dtype)


def exchange_lists(count_of, dtype="int32"):
    """`count_of(sender, receiver)` elements from each to each."""
    here = place()
    everybody = range(here.world)
    inputs = [message(here.rank, to, count_of(here.rank, to), dtype) for to in everybody]
    kept = [bits(tensor).clone() for tensor in inputs]
    outputs = [
        torch.zeros(count_of(source, here.rank), dtype=inputs[0].dtype) for source in everybody
    ]
    dist.all_to_all(outputs, inputs)
    for source, output in enumerate(outputs):
        expected = message(source, here.rank, count_of(source, here.rank), dtype)
        assert torch.equal(bits(output), bits(expected))
    assert all(
        torch.equal(bits(tensor), before) for tensor, before in zip(inputs, kept, strict=True)
    )


def exchange_splits(rows_of, width, async_op=False):
    """The same in one tensor whose rows have `width` elements."""
    here = place()
    everybody = range(here.world)
    sends = [rows_of(here.rank, to) for to in everybody]
    receives = [rows_of(source, here.rank) for source in everybody]
    parts = [message(here.rank, to, rows * width) for to, rows in enumerate(sends)]
    expected = [message(source, here.rank, rows * width) for source, rows in enumerate(receives)]
    output = torch.zeros(sum(receives), width, dtype=torch.int32)
    source = torch.cat([part.to(torch.int32) for part in parts]).view(-1, width)
    work = dist.all_to_all_single(output, source, receives, sends, async_op=async_op)
    if async_op:
        assert work.wait() is True
        assert work.get_future().wait()[0].data_ptr() == output.data_ptr()
    assert torch.equal(output.flatten(), torch.cat([part.to(torch.int32) for part in expected]))


PATTERNS = {
    "even": lambda sender, receiver: 7,
    "growing": lambda sender, receiver: sender * 3 + receiver,
    "only-to-itself": lambda sender, receiver: 11 if sender == receiver else 0,
    "only-to-others": lambda sender, receiver: 0 if sender == receiver else 5,
    "from-one": lambda sender, receiver: 1000 * (receiver + 1) if sender == 0 else 0,
    "to-the-last": lambda sender, receiver: 40_001 if receiver == place().world - 1 else 0,
    "nothing": lambda sender, receiver: 0,
    "large": lambda sender, receiver: 100_003 + 17 * sender - receiver,
}


@pytest.mark.parametrize("pattern", PATTERNS)
@ranks(1, 2, 3, 5)
def test_patterns(pattern):
    exchange_lists(PATTERNS[pattern])
    exchange_splits(PATTERNS[pattern], 1)
    exchange_splits(PATTERNS[pattern], 3, async_op=True)


@pytest.mark.parametrize("dtype", MOVED)
@ranks(2, 3)
def test_every_dtype_is_moved(dtype):
    exchange_lists(lambda sender, receiver: 4 * sender + receiver, dtype)


@pytest.mark.parametrize("count", [0, 1, 3, 1001, 300_000])
@ranks(1, 2, 3, 5)
def test_even_single(count):
    here = place()
    source = torch.cat([message(here.rank, to, count, "float64") for to in range(here.world)])
    output = torch.zeros_like(source)
    dist.all_to_all_single(output, source)
    expected = torch.cat([message(who, here.rank, count, "float64") for who in range(here.world)])
    assert torch.equal(bits(output), bits(expected))


@pytest.mark.parametrize("settings", [{"lanes": 3}, {"slice_bytes": 4096}])
@ranks(3, backend=None)
def test_options(settings):
    with group(pg_options=ringcomm.Options(**settings)):
        for pattern in PATTERNS.values():
            exchange_lists(pattern)


@ranks(3)
def test_strided_lists():
    here = place()
    base = torch.full((here.world, 50, 2), -1.0)
    outputs = [base[source, :, 1] for source in range(here.world)]
    inputs = [torch.full((100,), 10.0 * here.rank + to)[::2] for to in range(here.world)]
    dist.all_to_all(outputs, inputs)
    for source in range(here.world):
        assert (base[source, :, 1] == 10 * source + here.rank).all()
    assert (base[:, :, 0] == -1).all()


@ranks(3)
def test_many_in_flight():
    here = place()
    works = []
    for step in range(30):
        count = step * 71 % 301
        source = torch.full((count * here.world,), 10 * step + here.rank)
        output = torch.zeros_like(source)
        works.append((dist.all_to_all_single(output, source, async_op=True), output, count, step))
    for work, output, count, step in works:
        work.wait()
        for who in range(here.world):
            assert (output[who * count : (who + 1) * count] == 10 * step + who).all()


CALLS = {
    "short-input-list": (
        lambda: raw().alltoall([torch.ones(1)] * 2, [torch.ones(1)]),
        r"all_to_all: .*input.*1 tensors.*2 ranks",
    ),
    "long-output-list": (
        lambda: raw().alltoall([torch.ones(1)] * 3, [torch.ones(1)] * 2),
        r"all_to_all: .*output.*3 tensors.*2 ranks",
    ),
    "mixed-dtypes": (
        lambda: raw().alltoall([torch.ones(1)] * 2, [torch.ones(1), torch.ones(1).int()]),
        r"all_to_all: .*type.*Float.*Int",
    ),
    "output-dtype": (
        lambda: raw().alltoall([torch.ones(1).int()] * 2, [torch.ones(1)] * 2),
        r"all_to_all: .*type.*Float.*Int",
    ),
    "own-part": (
        lambda: dist.all_to_all([torch.ones(4), torch.ones(4)], [torch.ones(3), torch.ones(3)]),
        r"all_to_all: .*size.* 3 .* 4 ",
    ),
    "splits-own-part": (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(6), [2, 2], [3, 3]),
        r"all_to_all: .*split.* 3 .* 2",
    ),
    "splits-sum": (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [1, 2]),
        r"(?i)split sizes.*input|input.*split",
    ),
    "splits-number": (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [4], [2, 2]),
        r"(?i)split.*output|output.*split",
    ),
    "splits-negative": (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [5, -1]),
        r"(?i)split.*-1",
    ),
    "not-divisible": (
        lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)),
        r"(?i)input.* 3.* 2|input.*divisible",
    ),
    "no-dimension": (
        lambda: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0)),
        r"(?i)input.*dimension",
    ),
    "not-contiguous": (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(8)[::2]),
        r"contiguous",
    ),
}


@pytest.mark.parametrize("call", CALLS)
@ranks(2)
def test_wrong_argument_is_named(call):
    assert_refused(*CALLS[call])


MISMATCHES = {
    "size": lambda rank: (
        dist.all_to_all([torch.ones(10), torch.ones(10)], [torch.ones(10 + rank), torch.ones(10)])
        if rank == 0
        else dist.all_to_all([torch.ones(11), torch.ones(10)], [torch.ones(10), torch.ones(10)])
    ),
    "large": lambda rank: (
        dist.all_to_all_single(
            torch.ones(200_000 + rank), torch.ones(200_000 + rank), *[[100_000, 100_000 + rank]] * 2
        )
        if rank
        else dist.all_to_all_single(
            torch.ones(200_007), torch.ones(200_007), *[[100_000, 100_007]] * 2
        )
    ),
    "dtype": lambda rank: dist.all_to_all_single(
        *[torch.ones(4, dtype=[torch.int32, torch.float32][rank])] * 2
    ),
    "collective": lambda rank: (
        dist.all_to_all_single(torch.ones(4), torch.ones(4))
        if rank
        else dist.all_reduce(torch.ones(4))
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
@ranks(2, backend=None)
def test_ranks_that_disagree_are_told_at_once(what):
    assert_told(MISMATCHES[what], "all_to_all #", times=1 if what == "collective" else 2)
