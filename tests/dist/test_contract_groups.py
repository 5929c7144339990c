"""How process groups are made, numbered, limited and ended."""

from __future__ import annotations

import copy
import inspect
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import ringcomm
from dist.pool import ranks
from dist.worker import group, place
from dist.wrong import assert_group_works, raw

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def backend_of(one):
    return one._get_backend(torch.device("cpu"))


def sequence(one):
    return backend_of(one)._get_sequence_number_for_group()


@ranks(3, backend=None)
def test_sequence_numbers():
    """One more for each collective, the same on all ranks; who does not call is behind by one."""
    here = place()
    with group():
        first = sequence(dist.group.WORLD)
        for done in range(5):
            dist.all_reduce(torch.ones(3))
            assert sequence(dist.group.WORLD) == first + done + 1
        if here.rank != 2:
            dist.all_reduce(torch.ones(3), async_op=True)
        store = dist.PrefixStore("numbers", here.store)
        store.set(str(here.rank), str(sequence(dist.group.WORLD) - first))
        numbers = [int(store.get(str(rank))) for rank in range(here.world)]
        assert numbers == [6, 6, 5]
        if here.rank == 2:
            dist.all_reduce(torch.ones(3))


@ranks(4)
def test_sequence_numbers_of_a_subgroup():
    part = dist.new_group([0, 1, 2])
    before = sequence(dist.group.WORLD)
    if place().rank < 3:
        first = sequence(part)
        for done in range(3):
            dist.all_reduce(torch.ones(3), group=part)
            assert sequence(part) == first + done + 1
        assert sequence(dist.group.WORLD) == before
        dist.destroy_process_group(part)


@pytest.mark.parametrize("name", ["all_reduce", "send"])
@ranks(2)
def test_only_collectives_are_numbered(name):
    before = sequence(dist.group.WORLD)
    if name == "all_reduce":
        dist.all_reduce(torch.ones(1))
    elif place().rank == 0:
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
    assert sequence(dist.group.WORLD) == before + (name == "all_reduce")


@ranks(4)
def test_group_that_only_its_members_make():
    rank = place().rank
    members = [rank // 2 * 2, rank // 2 * 2 + 1]
    part = dist.new_group(members, use_local_synchronization=True)
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=part)
    assert tensor.item() == sum(members)
    again = dist.new_group(members, use_local_synchronization=True)  # of the same ranks
    works = []
    for one in (part, again):
        works.append((dist.all_reduce(result := torch.ones(9), group=one, async_op=True), result))
    for work, result in works:
        work.wait()
        assert (result == 2).all()
    dist.destroy_process_group(again)
    dist.destroy_process_group(part)


@pytest.mark.skipif(
    "sort_ranks" not in inspect.signature(dist.new_group).parameters,
    reason="this torch always sorts the ranks of a group",
)
@ranks(3)
def test_ranks_in_the_order_given():
    rank = place().rank
    part = dist.new_group([2, 0, 1], sort_ranks=False)
    assert part.rank() == [2, 0, 1].index(rank)
    outputs = [torch.zeros(1) for _ in range(3)]
    dist.all_gather(outputs, torch.tensor([float(rank)]), group=part)
    assert [output.item() for output in outputs] == [2, 0, 1]
    tensor = torch.tensor([rank])
    dist.broadcast(tensor, group=part, group_src=0)
    assert tensor.item() == 2
    dist.destroy_process_group(part)


@ranks(3)
def test_membership():
    rank = place().rank
    part = dist.new_group([0, 2])
    if rank == 1:
        assert part == dist.GroupMember.NON_GROUP_MEMBER
        tensor = torch.ones(1)
        with pytest.warns(UserWarning, match="not part of|does not belong"):
            dist.all_reduce(tensor, group=part)
        assert tensor.item() == 1
        with pytest.warns(UserWarning, match="not part of|does not belong"):
            dist.broadcast(tensor, 0, group=part)
    else:
        assert dist.get_process_group_ranks(part) == [0, 2]
        assert dist.get_rank(part) == dist.get_group_rank(part, rank) == rank // 2
        assert dist.get_global_rank(part, 1) == 2
        with pytest.raises(ValueError, match="not part of group"):
            dist.get_group_rank(part, 1)
        dist.destroy_process_group(part)


@pytest.mark.parametrize("backend", ["ringcomm", "cpu:ringcomm,cuda:ringcomm"])
@ranks(1, backend=None)
def test_world_of_one(backend):
    with group(backend=backend):
        assert dist.get_backend_config() == "cpu:ringcomm,cuda:ringcomm"
        if backend == "ringcomm" or TORCH >= (2, 14):
            assert dist.group.WORLD.name() == "custom"
        cuda = dist.group.WORLD._get_backend(torch.device("cuda"))
        assert cuda is backend_of(dist.group.WORLD)
        assert_group_works()


@pytest.mark.parametrize("backend", ["cpu:ringcomm,cpu:gloo", "cpu:ringcomm,"])
@ranks(1, backend=None)
def test_bad_device_map_is_refused(backend):
    with pytest.raises((ValueError, RuntimeError)), group(backend=backend):
        pass
    dist.distributed_c10d._world.group_count = 0


@ranks(2, backend=None)
def test_live_timeout():
    """What is set holds for the operations that follow; the group of another timeout keeps its."""
    here = place()
    with group(timeout=timedelta(seconds=50)):
        backend = raw()
        other = dist.new_group(timeout=timedelta(seconds=40))
        assert backend.options._timeout == timedelta(seconds=50)
        backend._set_default_timeout(timedelta(seconds=23))
        assert backend.options._timeout == timedelta(seconds=23)
        assert backend_of(other).options._timeout == timedelta(seconds=40)
        dist.barrier()
        backend._set_default_timeout(timedelta(seconds=0.5))
        if here.rank == 0:
            start = time.monotonic()
            with pytest.raises(RuntimeError, match="rank 1"):
                dist.all_reduce(torch.ones(1))
            assert 0.4 < time.monotonic() - start < 5
            here.store.set("seen", "yes")
        else:
            here.store.wait(["seen"], timedelta(seconds=10))


@ranks(2, backend=None)
def test_store_keeps_the_group_s_timeout():
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30), wait_for_workers=False
    )
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"(?s)rank 1"):
        dist.init_process_group(
            "ringcomm", store=store, rank=0, world_size=2, timeout=timedelta(seconds=1)
        )
    assert 0.9 < time.monotonic() - start < 3
    assert not dist.is_initialized()
    dist.distributed_c10d._world.group_count = 0


@ranks(2, backend=None)
def test_two_threads_make_groups_through_one_store():
    """Each rank begins with another group: neither may keep the store from the other thread."""
    here = place()
    made: dict[str, ringcomm._C.RingBackend] = {}

    def make(name):
        made[name] = ringcomm._C.RingBackend(
            store=dist.PrefixStore(name, here.store),
            rank=here.rank,
            size=here.world,
            options=ringcomm.Options(timeout=timedelta(seconds=10)),
            group_name=name,
        )

    names = ["one", "two"] if here.rank == 0 else ["two", "one"]
    start = time.monotonic()
    other = threading.Thread(target=make, args=(names[0],))
    other.start()
    time.sleep(0.3)
    make(names[1])
    other.join()
    assert time.monotonic() - start < 5
    for name in ("one", "two"):
        tensor = torch.ones(3)
        made[name].allreduce([tensor]).wait()
        assert (tensor == 2).all()
    for backend in made.values():
        backend.shutdown()


@pytest.mark.parametrize("end", ["shutdown", "abort"])
@ranks(2, backend=None)
def test_ends_that_torch_offers(end):
    with group():
        dist.barrier()
        backend = raw()
        if end == "abort":
            c10d._abort_process_group()
        else:
            dist.destroy_process_group()
        assert not dist.is_initialized()
        with pytest.raises(RuntimeError, match=r"destroyed|abort"):
            backend.allreduce([torch.ones(1)]).wait()
        backend.abort()
        backend.shutdown()


@ranks(2)
def test_options_of_a_split_are_a_copy():
    mine = raw().options
    copied = copy.deepcopy(mine)
    assert isinstance(copied, ringcomm.Options)
    assert copied._timeout == mine._timeout
    copied._timeout = timedelta(seconds=77)
    assert mine._timeout != copied._timeout
    part = dist.group.WORLD.split_group([0, 1], timedelta(seconds=5), copied, "copied")
    assert backend_of(part).options._timeout == timedelta(seconds=5)
    assert mine._timeout == raw().options._timeout != timedelta(seconds=5)
    tensor = torch.ones(4)
    part.allreduce([tensor]).wait()
    assert (tensor == 2).all()
    part.shutdown()
    assert_group_works()


@ranks(2)
def test_what_is_not_offered_says_so():
    with pytest.raises(TypeError, match="shrink"):
        dist.shrink_group([1])
    with pytest.raises(RuntimeError, match="device"):
        dist.split_group(split_ranks=[[0, 1]])
    assert_group_works()
