"""send, recv, isend, irecv and batches of them: matching, order, sizes, credit, errors."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.test_gather_broadcast import MOVED, bits, part_of
from dist.worker import place

EAGER = 64 << 10
CREDIT = 2 << 20
COUNTS = (0, 1, 7, EAGER // 4 - 1, EAGER // 4, EAGER // 4 + 1, 300_000, 2_000_003)


def filled(value, count=5, dtype=torch.float32):
    return torch.full((count,), value, dtype=dtype)


def wait_all(works):
    for work in works:
        assert work.wait() is True


@pytest.mark.parametrize("count", COUNTS)
@ranks(2, 3)
def test_around_the_ring(count):
    here = place()
    after, before = (here.rank + 1) % here.world, (here.rank - 1) % here.world
    source, target = part_of(here.rank, count), torch.zeros(count)
    work = dist.isend(source, after)
    assert dist.recv(target, before) == before
    assert work.wait() is True
    assert torch.equal(bits(target), bits(part_of(before, count)))
    assert torch.equal(bits(source), bits(part_of(here.rank, count)))


@pytest.mark.parametrize("dtype", MOVED)
@ranks(2)
def test_every_dtype_is_moved(dtype):
    here = place()
    for count in (3, 40_001):
        if here.rank == 0:
            dist.send(part_of(1, count, dtype), 1)
        else:
            target = torch.zeros(count, dtype=getattr(torch, dtype))
            dist.recv(target, 0)
            assert torch.equal(bits(target), bits(part_of(1, count, dtype)))


@pytest.mark.parametrize("count", [3, 100_000])
@ranks(2)
def test_tags_in_any_order(count):
    here = place()
    tags = list(range(20))
    random.Random(here.rank).shuffle(tags)
    tensors = {tag: filled(float(tag if here.rank == 0 else -1), count) for tag in tags}
    if here.rank == 0:
        wait_all([dist.isend(tensors[tag], 1, tag=tag) for tag in tags])
    else:
        wait_all([dist.irecv(tensors[tag], 0, tag=tag) for tag in tags])
        for tag, tensor in tensors.items():
            assert (tensor == tag).all()


@ranks(2)
def test_order_is_kept_per_tag_whatever_the_size():
    """Small messages must not overtake large ones of the same tag."""
    here = place()
    shapes = [(step % 3, [5, 50_000, 1, 200_000][step % 4]) for step in range(48)]
    if here.rank == 0:
        wait_all(
            [
                dist.isend(filled(float(step), count), 1, tag=tag)
                for step, (tag, count) in enumerate(shapes)
            ]
        )
    else:
        targets = [filled(-1.0, count) for _, count in shapes]
        works = [
            (step, dist.irecv(targets[step], 0, tag=wanted))
            for wanted in (2, 0, 1)
            for step, (tag, _) in enumerate(shapes)
            if tag == wanted
        ]
        for step, work in works:
            work.wait()
            assert (targets[step] == step).all()


@ranks(3, 5)
def test_from_anybody():
    here = place()
    if here.rank == 0:
        seen = {}
        for _ in range(2 * (here.world - 1)):
            target = torch.zeros(9, dtype=torch.int64)
            source = dist.recv(target)
            assert target[0] == source
            assert (target[1:] == seen.get(source, 0)).all()
            seen[source] = seen.get(source, 0) + 1
        assert seen == dict.fromkeys(range(1, here.world), 2)
    else:
        for step in range(2):
            dist.send(torch.tensor([here.rank, *[step] * 8]), 0)
    dist.barrier()


@ranks(3)
def test_source_of_a_work():
    here = place()
    if here.rank == 1:
        targets = [torch.zeros(20_000) for _ in range(2)]
        works = [dist.irecv(target, tag=7) for target in targets]
        wait_all(works)
        for work, target in zip(works, targets, strict=True):
            assert (target == work._source_rank()).all()
        assert {work._source_rank() for work in works} == {0, 2}
    else:
        dist.send(filled(float(here.rank), 20_000), 1, tag=7)


@ranks(3)
def test_named_and_any_source_side_by_side():
    """First come first served: the earlier receive that fits takes the message."""
    here = place()
    if here.rank == 0:
        first, second = torch.zeros(2), torch.zeros(2)
        anybody = dist.irecv(first, tag=1)
        named = dist.irecv(second, 2, tag=1)
        dist.barrier()
        anybody.wait()
        dist.barrier()
        named.wait()
        assert first.tolist() == [1.0, 1.0]
        assert second.tolist() == [2.0, 2.0]
    else:
        dist.barrier()
        if here.rank == 1:
            dist.send(filled(1.0, 2), 0, tag=1)
        dist.barrier()
        if here.rank == 2:
            dist.send(filled(2.0, 2), 0, tag=1)


@pytest.mark.parametrize("count", [0, 3, 500_000])
@ranks(1, 2)
def test_to_itself(count):
    here = place()
    for reverse in (False, True):
        target = torch.zeros(count)
        operations = [
            dist.P2POp(dist.isend, part_of(here.rank, count), here.rank),
            dist.P2POp(dist.irecv, target, here.rank),
        ]
        wait_all(dist.batch_isend_irecv(operations[::-1] if reverse else operations))
        assert torch.equal(bits(target), bits(part_of(here.rank, count)))


@ranks(2)
def test_to_itself_by_tag_and_from_anybody():
    here = place()
    first, second = torch.zeros(4), torch.zeros(4)
    works = [dist.irecv(first, tag=5), dist.irecv(second, here.rank, tag=6)]
    works.append(dist.isend(filled(6.0, 4), here.rank, tag=6))
    works.append(dist.isend(filled(5.0, 4), here.rank, tag=5))
    wait_all(works)
    assert works[0]._source_rank() == here.rank
    assert (first == 5).all()
    assert (second == 6).all()


@ranks(3, 5)
def test_batch_with_everybody():
    here = place()
    targets = [torch.zeros(here.rank + 1, 1000) for _ in range(here.world)]
    operations = [
        dist.P2POp(dist.isend, torch.full((to + 1, 1000), float(here.rank)), to)
        for to in range(here.world)
    ]
    operations += [dist.P2POp(dist.irecv, target, who) for who, target in enumerate(targets)]
    wait_all(dist.batch_isend_irecv(operations))
    for who, target in enumerate(targets):
        assert (target == who).all()


@ranks(2)
def test_sixteen_mebibytes_both_ways_at_once():
    """Both send before they receive: with one buffer between them they would wait forever."""
    here = place()
    source, target = part_of(here.rank, 4 << 20), torch.zeros(4 << 20)
    work = dist.isend(source, 1 - here.rank)
    dist.recv(target, 1 - here.rank)
    work.wait()
    assert torch.equal(bits(target), bits(part_of(1 - here.rank, 4 << 20)))


@ranks(2)
def test_a_thousand_outstanding():
    here = place()
    count = [3, 700, 20_000]
    sources = [filled(float(i), count[i % 3]) for i in range(1000)]
    targets = [torch.empty(count[i % 3]) for i in range(1000)]
    works = [dist.isend(source, 1 - here.rank, tag=i % 7) for i, source in enumerate(sources)]
    works += [dist.irecv(target, 1 - here.rank, tag=i % 7) for i, target in enumerate(targets)]
    wait_all(works)
    for i, target in enumerate(targets):
        assert (target == i).all()


@pytest.mark.parametrize(("count", "messages"), [(EAGER // 4, 100), (250, 4000), (1_000_000, 6)])
@ranks(2)
def test_more_unexpected_messages_than_the_credit(count, messages):
    """What nobody has asked for stays with its sender, and other messages still get through."""
    here = place()
    if here.rank == 0:
        assert count * 4 * messages > CREDIT
        works = [dist.isend(filled(float(i), count), 1, tag=1) for i in range(messages)]
        dist.send(filled(-1.0, 10), 1, tag=2)
        target = torch.zeros(1)
        dist.recv(target, 1, tag=3)
        assert not works[-1].is_completed()
        here.store.set("looked", "1")
        wait_all(works)
    else:
        target = torch.zeros(10)
        dist.recv(target, 0, tag=2)
        dist.send(torch.ones(1), 0, tag=3)
        here.store.wait(["looked"])
        for i in range(messages):
            target = torch.zeros(count)
            dist.recv(target, 0, tag=1)
            assert (target == i).all()


@ranks(2)
def test_a_small_message_passes_a_large_one_under_way():
    here = place()
    large = torch.zeros(16 << 20) if here.rank else torch.ones(16 << 20)
    if here.rank == 0:
        work = dist.isend(large, 1, tag=1)
        for step in range(20):
            dist.send(filled(float(step), 3), 1, tag=2)
        work.wait()
    else:
        work = dist.irecv(large, 0, tag=1)
        early = 0
        for step in range(20):
            target = torch.zeros(3)
            dist.recv(target, 0, tag=2)
            early += not work.is_completed()
            assert (target == step).all()
        work.wait()
        assert early > 0
        assert (large == 1).all()


@ranks(2)
def test_strided():
    here = place()
    for count in (5, 60_000):
        if here.rank == 0:
            dist.send(torch.arange(2.0 * count).view(count, 2)[:, 1], 1)
            dist.send(torch.tensor([4.0]).expand(count), 1)
        else:
            base = torch.full((count, 3), -1.0)
            dist.recv(base[:, 1], 0)
            assert torch.equal(base[:, 1], torch.arange(2.0 * count)[1::2])
            dist.irecv(base[:, 2], 0).wait()
            assert (base[:, 2] == 4).all()
            assert (base[:, 0] == -1).all()


@ranks(2)
def test_complex_and_shapes():
    here = place()
    if here.rank == 0:
        dist.send(torch.full((2, 3), 1 + 2j), 1)
        dist.send(torch.arange(6.0).view(2, 3), 1)
        dist.send(torch.tensor(3.5), 1)
    else:
        target = torch.zeros(2, 3, dtype=torch.complex64)
        dist.recv(target, 0)
        assert (target == 1 + 2j).all()
        flat = torch.zeros(6)
        dist.recv(flat, 0)
        assert flat.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        scalar = torch.tensor(0.0)
        dist.recv(scalar, 0)
        assert scalar.item() == 3.5


@ranks(2)
def test_future_of_a_receive():
    here = place()
    tensor = filled(float(here.rank), 1000)
    work = dist.irecv(tensor, 1) if here.rank == 0 else dist.isend(tensor, 0)
    future = work.get_future()
    assert float(future.then(lambda f: f.value()[0].sum()).wait()) == 1000


@ranks(2)
def test_dropped_senders_arrive():
    """The works and tensors are dropped: the messages are on their way."""
    here = place()
    if here.rank == 0:
        for step in range(30):
            dist.isend(filled(float(step), 30_000), 1)
    else:
        for step in range(30):
            target = torch.zeros(30_000)
            dist.recv(target, 0)
            assert (target == step).all()
