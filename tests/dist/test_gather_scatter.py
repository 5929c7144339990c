"""gather and scatter, to and from every root: values, uneven sizes, layouts, wrong calls."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ringcomm
from dist.pool import ranks
from dist.test_gather_broadcast import MOVED, bits, part_of
from dist.worker import group, place
from dist.wrong import assert_refused, assert_told, raw

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
COUNTS = (0, 1, 2, 3, 7, 1003, 70_001, 500_000)


def gather_to(root, sizes, dtype="float32", async_op=False):
    """Rank r gives `sizes[r]` elements."""
    here = place()
    mine = part_of(here.rank, sizes[here.rank], dtype)
    outputs = None
    if here.rank == root:
        outputs = [torch.zeros(size, dtype=mine.dtype) for size in sizes]
    work = dist.gather(mine, outputs, dst=root, async_op=async_op)
    if async_op:
        assert work.wait() is True
    for rank, output in enumerate(outputs or []):
        assert torch.equal(bits(output), bits(part_of(rank, sizes[rank], dtype)))
    assert torch.equal(bits(mine), bits(part_of(here.rank, sizes[here.rank], dtype)))


def scatter_from(root, sizes, dtype="float32", async_op=False):
    here = place()
    inputs = None
    if here.rank == root:
        inputs = [part_of(50 + rank, size, dtype) for rank, size in enumerate(sizes)]
    output = torch.zeros(sizes[here.rank], dtype=getattr(torch, dtype))
    work = dist.scatter(output, inputs, src=root, async_op=async_op)
    if async_op:
        assert work.wait() is True
        assert work.get_future().wait()[0].data_ptr() == output.data_ptr()
    assert torch.equal(bits(output), bits(part_of(50 + here.rank, sizes[here.rank], dtype)))
    for rank, kept in enumerate(inputs or []):
        assert torch.equal(bits(kept), bits(part_of(50 + rank, sizes[rank], dtype)))


@pytest.mark.parametrize("count", COUNTS)
@ranks(1, 2, 3, 5)
def test_size_with_every_root(count):
    world = place().world
    for root in range(world):
        gather_to(root, [count] * world, async_op=bool(root % 2))
        scatter_from(root, [count] * world, async_op=bool(root % 2))


@pytest.mark.parametrize("dtype", MOVED)
@ranks(2, 3)
def test_every_dtype_is_moved(dtype):
    gather_to(1, [37] * place().world, dtype)
    scatter_from(1, [37] * place().world, dtype)


@pytest.mark.parametrize("unit", [1, 100_000])
@ranks(2, 3, 5)
def test_parts_of_different_sizes(unit):
    """Also those that have none."""
    world = place().world
    for root in range(world):
        sizes = [(rank - root) % world * unit for rank in range(world)]
        gather_to(root, sizes)
        scatter_from(root, sizes)


@pytest.mark.parametrize("settings", [{"lanes": 3}, {"slice_bytes": 4096}])
@ranks(3, backend=None)
def test_options(settings):
    with group(pg_options=ringcomm.Options(**settings)):
        for count in (0, 3, 300_000):
            for root in range(3):
                gather_to(root, [count, count + 1, 2 * count], "int16")
                scatter_from(root, [count, count + 1, 2 * count], "int16")


@ranks(3)
def test_strided():
    here = place()
    base = torch.full((3, 20, 2), -1.0)
    outputs = [base[rank, :, 1] for rank in range(3)] if here.rank == 2 else None
    dist.gather(torch.full((20, 3), float(here.rank))[:, 0], outputs, dst=2)
    if here.rank == 2:
        for rank in range(3):
            assert (base[rank, :, 1] == rank).all()
    assert (base[:, :, 0] == -1).all()
    parts = [torch.arange(40.0)[::2], torch.arange(40.0)[1::2], torch.tensor(5.0).expand(20)]
    target = torch.full((20, 2), -1.0)
    dist.scatter(target[:, 1], parts if here.rank == 0 else None, src=0)
    assert torch.equal(target[:, 1], parts[here.rank])
    assert (target[:, 0] == -1).all()


@ranks(3)
def test_objects():
    here = place()
    received = [None] * 3 if here.rank == 1 else None
    dist.gather_object({"rank": here.rank, "text": "x" * here.rank}, received, dst=1)
    if here.rank == 1:
        assert received == [{"rank": rank, "text": "x" * rank} for rank in range(3)]
    given = [["a"], {"b": 2}, "c" * 5000] if here.rank == 0 else None
    got = [None]
    dist.scatter_object_list(got, given, src=0)
    assert got[0] == [["a"], {"b": 2}, "c" * 5000][here.rank]


@ranks(3)
def test_in_a_subgroup():
    here = place()
    pair = dist.new_group([1, 2])
    if here.rank > 0:
        outputs = [torch.zeros(2) for _ in range(2)] if here.rank == 2 else None
        dist.gather(torch.full((2,), float(here.rank)), outputs, dst=2, group=pair)
        if here.rank == 2:
            assert [output.tolist() for output in outputs] == [[1.0, 1.0], [2.0, 2.0]]
        dist.destroy_process_group(pair)


ONES = torch.ones(3)


def gather(root, outputs, inputs=None):
    options = dist.GatherOptions()
    options.rootRank = root
    return raw().gather(outputs, [ONES] if inputs is None else inputs, options)


def scatter(root, inputs, outputs=None):
    options = dist.ScatterOptions()
    options.rootRank = root
    return raw().scatter([ONES.clone()] if outputs is None else outputs, inputs, options)


def here_and_elsewhere(call, wrong_here, wrong_elsewhere):
    """Arguments for a call whose root is this rank, and one whose root is the other."""
    rank = place().rank
    return call(rank, wrong_here) if wrong_here is not None else call(1 - rank, wrong_elsewhere)


CALLS = {
    "gather-root": (lambda: gather(2, []), r"gather: .*root.*2.*allowed: 0 to 1"),
    "gather-root-negative": (lambda: gather(-1, []), r"gather: .*root.*-1.*allowed: 0 to 1"),
    "gather-list": (
        lambda: here_and_elsewhere(gather, [[ONES]], None),
        r"gather: .*output.* 1 tensors.* 2 ranks",
    ),
    "gather-no-list": (
        lambda: here_and_elsewhere(gather, [], None),
        r"gather: .*single-element output.*got 0",
    ),
    "gather-list-elsewhere": (
        lambda: here_and_elsewhere(gather, None, [[ONES, ONES]]),
        r"gather: requires empty output on non-root",
    ),
    "gather-dtype": (
        lambda: here_and_elsewhere(gather, [[ONES.int(), ONES.int()]], None),
        r"gather: .*type.*Float.*Int",
    ),
    "gather-two-inputs": (lambda: gather(0, [], [ONES, ONES]), r"gather: .*single-element.*2"),
    "gather-own-size": (
        lambda: here_and_elsewhere(gather, [[torch.ones(4), torch.ones(4)]], None),
        r"gather: .*size.* 3 elements.* 4 ",
    ),
    "scatter-root": (lambda: scatter(2, []), r"scatter: .*root.*2.*allowed: 0 to 1"),
    "scatter-list": (
        lambda: here_and_elsewhere(scatter, [[ONES]], None),
        r"scatter: .*input.* 1 tensors.* 2 ranks",
    ),
    "scatter-list-elsewhere": (
        lambda: here_and_elsewhere(scatter, None, [[ONES, ONES]]),
        r"scatter: requires empty input on non-root",
    ),
    "scatter-dtype": (
        lambda: here_and_elsewhere(scatter, [[ONES.int(), ONES.int()]], None),
        r"scatter: .*type.*Float.*Int",
    ),
    "scatter-overlapping": (
        lambda: scatter(1 - place().rank, [], [torch.ones(1).expand(3)]),
        r"scatter: .*overlap",
    ),
    "scatter-own-size": (
        lambda: here_and_elsewhere(scatter, [[torch.ones(4), torch.ones(4)]], None),
        r"scatter: .*size.* 4 elements.* 3 |scatter: .*size.* 3 elements.* 4 ",
    ),
}


@pytest.mark.parametrize("call", CALLS)
@ranks(2)
def test_wrong_argument_is_named(call):
    assert_refused(*CALLS[call])


def gather_sizes(rank, mine, expected):
    """Rank 1 gives `mine`, of which rank 0 expects `expected`."""
    outputs = [mine[:0], torch.empty_like(expected)] if rank == 0 else None
    dist.gather(mine[:0] if rank == 0 else mine, outputs, dst=0)


def scatter_sizes(rank, given, expected):
    inputs = [given[:0], given] if rank == 0 else None
    dist.scatter(given[:0].clone() if rank == 0 else expected, inputs, src=0)


MISMATCHES = {
    "size": (torch.ones(10), torch.ones(11)),
    "large": (torch.ones(500_000), torch.ones(500_001)),
    "dtype": (torch.ones(4), torch.ones(4).int()),
}


@pytest.mark.parametrize("what", MISMATCHES)
@ranks(2, backend=None)
def test_gather_of_what_was_not_expected(what):
    given, expected = MISMATCHES[what]
    if what == "dtype":  # a list of one dtype: the root's own is another than the other rank's
        given = expected = given if place().rank else expected
    assert_told(lambda rank: gather_sizes(rank, given, expected), "gather #")


@pytest.mark.parametrize("what", MISMATCHES)
@ranks(2, backend=None)
def test_scatter_of_what_was_not_expected(what):
    given, expected = MISMATCHES[what]
    assert_told(lambda rank: scatter_sizes(rank, given, expected), "scatter #")


@ranks(2, backend=None)
def test_different_roots():
    """Two roots of a scatter both only send."""

    def call(rank):
        dist.scatter(torch.ones(3), [torch.zeros(3), torch.zeros(3)], src=rank)

    assert_told(call, ", root ", 1)


def gather_into(root, output, mine, async_op=False):
    work = dist.gather_single(mine, output, dst=root, async_op=async_op)
    if async_op:
        assert work.wait() is True


@pytest.mark.skipif(TORCH < (2, 14), reason="torch has gather_single from 2.14 on")
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@ranks(1, 2, 3, 5)
def test_gather_single(stacked, async_op):
    here = place()
    for root in range(here.world):
        for count in COUNTS:
            mine = part_of(here.rank, count, "float32")
            output = None
            if here.rank == root:
                output = torch.full((here.world, count) if stacked else (here.world * count,), -1.0)
            gather_into(root, output, mine, async_op)
            if output is not None:
                for rank, part in enumerate(output.view(here.world, count)):
                    assert torch.equal(bits(part), bits(part_of(rank, count, "float32")))
            assert torch.equal(bits(mine), bits(part_of(here.rank, count, "float32")))


@pytest.mark.skipif(TORCH < (2, 14), reason="torch has gather_single from 2.14 on")
@ranks(2, 3)
def test_gather_single_looks_at_the_output_of_the_root_only():
    here = place()
    mine = torch.arange(6.0).view(3, 2).t() + here.rank  # in another order than its memory
    output = torch.full((here.world * 6,) if here.rank == 1 else (5,), -1.0)
    gather_into(1, output, mine)
    if here.rank == 1:
        for rank, part in enumerate(output.view(here.world, 2, 3)):
            assert torch.equal(part, torch.arange(6.0).view(3, 2).t() + rank)
    else:
        assert (output == -1).all()
