"""all_gather, all_gather_into_tensor, broadcast and barrier: values, sizes, roots, dtypes."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import agree, group, place

WORLDS = (1, 2, 3, 4, 5, 8)
COUNTS = (0, 1, 2, 3, 7, 1003, 70_001, 500_000)
MOVED = (
    *("float64", "float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8"),
    *("bool", "uint16", "uint32", "uint64", "complex64", "complex128"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu"),
)


def bits(tensor):
    """The same memory as bytes, which compare as bits do."""
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)


def part_of(rank, count, dtype="float32"):
    """Any bits: NaNs and denormals have to arrive as they are."""
    generator = torch.Generator().manual_seed(77 * rank + count)
    width = getattr(torch, dtype).itemsize
    high = 2 if dtype == "bool" else 256
    raw = torch.randint(0, high, (count * width,), dtype=torch.uint8, generator=generator)
    return raw.view(getattr(torch, dtype)) if count else torch.empty(0, dtype=getattr(torch, dtype))


def gather_both(count, dtype):
    here = place()
    mine = part_of(here.rank, count, dtype)
    outputs = [torch.zeros(count, dtype=mine.dtype) for _ in range(here.world)]
    dist.all_gather(outputs, mine)
    whole = torch.zeros(count * here.world, dtype=mine.dtype)
    dist.all_gather_into_tensor(whole, mine)
    for rank, output in enumerate(outputs):
        expected = bits(part_of(rank, count, dtype))
        assert torch.equal(bits(output), expected)
        assert torch.equal(bits(whole[rank * count : (rank + 1) * count]), expected)


def broadcast_from_all(count, dtype):
    here = place()
    for root in range(here.world):
        tensor = part_of(here.rank, count, dtype)
        dist.broadcast(tensor, root)
        assert torch.equal(bits(tensor), bits(part_of(root, count, dtype)))


@pytest.mark.parametrize("count", COUNTS)
@ranks(*WORLDS)
def test_all_gather_size(count):
    gather_both(count, "float32")


@pytest.mark.parametrize("count", COUNTS)
@ranks(*WORLDS)
def test_broadcast_size_from_every_root(count):
    broadcast_from_all(count, "float32")


@pytest.mark.parametrize("dtype", MOVED)
@ranks(2, 3)
def test_every_dtype_is_moved(dtype):
    gather_both(37, dtype)
    broadcast_from_all(37, dtype)


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@ranks(3, 4, backend=None)
def test_forced_all_gather(algorithm):
    import ringcomm

    with group(pg_options=ringcomm.Options(algorithms=f"all_gather={algorithm}")):
        for count in (0, 1, 1003, 300_000):
            gather_both(count, "int16")


@pytest.mark.parametrize("algorithm", ["tree", "chain"])
@ranks(3, 5, backend=None)
def test_forced_broadcast(algorithm):
    import ringcomm

    with group(pg_options=ringcomm.Options(algorithms=f"broadcast={algorithm}")):
        for count in (0, 1, 1003, 300_000):
            broadcast_from_all(count, "int16")


@pytest.mark.parametrize("algorithm", ["direct", "dissemination"])
@ranks(3, 5, backend=None)
def test_barrier_waits_for_the_last(algorithm):
    import ringcomm

    here = place()
    with group(pg_options=ringcomm.Options(algorithms=f"barrier={algorithm}")):
        for late in range(here.world):
            dist.barrier()
            if here.rank == late:
                time.sleep(0.15)
            left = time.monotonic()
            dist.barrier()
            times = torch.zeros(here.world, 2, dtype=torch.float64)
            dist.all_gather_into_tensor(
                times, torch.tensor([left, time.monotonic()], dtype=torch.float64)
            )
            # One clock for all processes: nobody passed before the last one came.
            assert times[:, 1].min() >= times[:, 0].max()


@ranks(3)
def test_gathered_shapes():
    here = place()
    mine = torch.full((2, 3), float(here.rank))
    stacked = torch.empty(here.world, 2, 3)
    dist.all_gather_into_tensor(stacked, mine)
    joined = torch.empty(2 * here.world, 3)
    dist.all_gather_into_tensor(joined, mine)
    agree(joined)
    for rank in range(here.world):
        assert (stacked[rank] == rank).all()
        assert (joined[2 * rank : 2 * rank + 2] == rank).all()


@pytest.mark.parametrize("unit", [1, 100_000])
@ranks(2, 3, 5)
def test_all_gather_of_parts_of_different_sizes(unit):
    here = place()
    outputs = [torch.zeros(rank * unit) for rank in range(here.world)]
    dist.all_gather(outputs, torch.full((here.rank * unit,), float(here.rank)))
    for rank, output in enumerate(outputs):
        assert (output == rank).all()


@ranks(3)
def test_objects():
    here = place()
    gathered = [None] * here.world
    dist.all_gather_object(gathered, {"rank": here.rank, "text": "x" * (here.rank * 1000)})
    assert [one["rank"] for one in gathered] == [0, 1, 2]
    assert [len(one["text"]) for one in gathered] == [0, 1000, 2000]
    objects = [here.rank, "mine"] if here.rank == 1 else [None, None]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [1, "mine"]


@ranks(2)
def test_monitored_order_of_mixed_collectives():
    """Many collectives of changing kind and size, one after another, none waits for the next."""
    here = place()
    works, checks = [], []
    for step in range(60):
        count = (step * 37) % 500 + 1
        if step % 3 == 0:
            tensor = torch.full((count,), here.rank + step, dtype=torch.int64)
            works.append(dist.all_reduce(tensor, async_op=True))
            checks.append((tensor, 2 * step + 1))
        elif step % 3 == 1:
            tensor = torch.full((count,), here.rank, dtype=torch.int64)
            works.append(dist.broadcast(tensor, step % 2, async_op=True))
            checks.append((tensor, step % 2))
        else:
            tensor = torch.zeros(count * 2, dtype=torch.int64)
            source = torch.full((count,), step, dtype=torch.int64)
            works.append(dist.all_gather_into_tensor(tensor, source, async_op=True))
            checks.append((tensor, step))
    for work in works:
        assert work.wait()
    for tensor, value in checks:
        assert (tensor == value).all()
