"""A thousand operations in flight, waited for in order: each handle gives its own result."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import place
from dist.wrong import raw

COUNT = 1000


def rooted(kind, root):
    options = kind()
    options.rootRank = root
    return options


def blank():
    return torch.tensor([-1])


# Each starts number `index` and gives its work with what its first tensors then are; None: nothing
# is promised on this rank.


def broadcast(index):
    here = place()
    root = index % here.world
    work = raw().broadcast([torch.tensor([index + here.rank])], rooted(dist.BroadcastOptions, root))
    return work, [index + root]


def all_reduce(index):
    here = place()
    total = index * here.world + sum(range(here.world))
    return raw().allreduce([torch.tensor([index + here.rank])]), [total]


def all_reduce_coalesced(index):
    here = place()
    total = index * here.world + sum(range(here.world))
    mine = [torch.tensor([index + here.rank]) for _ in range(2)]
    return raw().allreduce_coalesced(mine), [total] * 2


def reduce(index):
    here = place()
    root = index % here.world
    work = raw().reduce([torch.tensor([index + here.rank])], rooted(dist.ReduceOptions, root))
    total = index * here.world + sum(range(here.world))
    return work, [total] if root == here.rank else None


def all_gather(index):
    here = place()
    outputs = [blank() for _ in range(here.world)]
    work = raw().allgather([outputs], [torch.tensor([index + here.rank])])
    return work, [index + rank for rank in range(here.world)]


def gather(index):
    here = place()
    root = index % here.world
    outputs = [[blank() for _ in range(here.world)]] if root == here.rank else []
    mine = [torch.tensor([index + here.rank])]
    work = raw().gather(outputs, mine, rooted(dist.GatherOptions, root))
    return work, [index + rank for rank in range(here.world)] if root == here.rank else None


def scatter(index):
    here = place()
    root = index % here.world
    parts = [torch.tensor([index + root + to]) for to in range(here.world)]
    given = [parts] if root == here.rank else []
    work = raw().scatter([blank()], given, rooted(dist.ScatterOptions, root))
    return work, [index + root + here.rank]


def reduce_scatter(index):
    here = place()
    parts = [torch.tensor([index + to]) for to in range(here.world)]
    work = raw().reduce_scatter([blank()], [parts])
    return work, [(index + here.rank) * here.world]


STARTERS = [
    *(broadcast, all_reduce, all_reduce_coalesced, reduce),
    *(all_gather, gather, scatter, reduce_scatter),
]


@pytest.mark.parametrize("start", STARTERS, ids=[start.__name__ for start in STARTERS])
@ranks(2, 4)
def test_a_thousand_in_flight(start):
    started = [start(index) for index in range(COUNT)]
    for index, (work, expected) in enumerate(started):
        future = work.get_future()
        future.wait()
        if expected is not None:
            assert [tensor.item() for tensor in future.value()] == expected, index
