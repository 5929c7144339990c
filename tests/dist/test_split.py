"""split: subgroups made by the parent's backend, with its options and without new_group."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist

import ringcomm
from dist.pool import ranks
from dist.worker import LIMIT, group, place
from dist.wrong import assert_group_works, raw


def split(members, name, **changes):
    """What torch's split_group does, which wants an accelerator; None off the members."""
    options = copy.deepcopy(raw().options)
    for option, value in changes.items():
        options.set(option, value)
    return dist.group.WORLD.split_group(members, LIMIT, options, name)


def backend_of(part):
    return part._get_backend(torch.device("cpu"))


def total(part, value):
    tensor = torch.full((1000,), float(value))
    part.allreduce([tensor]).wait()
    assert (tensor == tensor[0]).all()
    return tensor[0].item()


@ranks(1, 2, 3, 5)
def test_of_everybody():
    here = place()
    part = split(list(range(here.world)), f"all{here.world}")
    assert (part.rank(), part.size()) == (here.rank, here.world)
    assert total(part, here.rank) == sum(range(here.world))
    assert_group_works()


@ranks(4)
def test_halves_at_once():
    here = place()
    members = [0, 2] if here.rank % 2 == 0 else [1, 3]
    part = split(members, f"half{here.rank % 2}")
    assert part.size() == 2
    assert part.rank() == members.index(here.rank)
    assert total(part, here.rank) == sum(members)
    assert_group_works()


@ranks(3)
def test_ranks_of_a_part():
    here = place()
    part = split([0, 2], "apart")
    if here.rank == 1:
        assert part is None
    else:
        tensor = torch.tensor([float(here.rank)])
        options = dist.BroadcastOptions()
        options.rootRank = 1
        part.broadcast([tensor], options).wait()
        assert tensor.item() == 2


@ranks(3)
def test_others_get_nothing():
    here = place()
    part = split([0, 1], "two")
    if here.rank == 2:
        assert part is None
    else:
        assert total(part, here.rank + 1) == 3
    assert_group_works()


def all_reduce_algorithms(backend):
    table = ringcomm._C.algorithm_table(2, backend.options)
    return {algorithm for collective, _, _, algorithm in table if collective == "all_reduce"}


@ranks(2, backend=None)
def test_options_are_the_parents_or_given():
    with group(pg_options=ringcomm.Options(algorithms="all_reduce=scatter-gather")):
        inherited = split([0, 1], "inherited")
        assert all_reduce_algorithms(backend_of(inherited)) == {"scatter-gather"}
        changed = split([0, 1], "changed", algorithms="all_reduce=ring")
        assert all_reduce_algorithms(backend_of(changed)) == {"ring"}
        assert all_reduce_algorithms(raw()) == {"scatter-gather"}
        assert total(inherited, 1) == total(changed, 1) == 2


@ranks(2)
def test_devices_share_one_backend():
    """As they do in the parent; torch splits for each of them."""
    part = split([0, 1], "shared")
    assert part._get_backend(torch.device("cpu")) is part._get_backend(torch.device("cuda"))


@ranks(2, backend=None)
def test_a_part_ends_without_its_parent():
    with group():
        part = split([0, 1], "first")
        assert total(part, 1) == 2
        dist.barrier()
        del part
        again = split([0, 1], "second")
        assert total(again, 2) == 4
        assert_group_works()


@ranks(2)
def test_options_of_another_backend_are_refused():
    with pytest.raises(TypeError, match=r"split: .*ringcomm\.Options"):
        dist.group.WORLD.split_group([0, 1], LIMIT, dist.ProcessGroupGloo._Options(), "other")
    assert_group_works()


@ranks(2)
def test_backend_says_that_it_can():
    assert raw().supports_splitting
