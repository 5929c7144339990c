"""Groups: subsets, several at once, their ends and beginnings, options, secrets and stores."""

from __future__ import annotations

import gc
import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import ringcomm
from dist.pool import ranks
from dist.worker import LIMIT, group, place, start_group


def total(value=1.0, count=3, **arguments):
    tensor = torch.full((count,), float(value))
    dist.all_reduce(tensor, **arguments)
    return float(tensor[-1])


def start_and_use(**arguments):
    """What is wrong with options shows at the latest when ranks connect."""
    start_group(**arguments)
    total()


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


@ranks(4)
def test_subsets_at_once():
    here = place()
    low = dist.new_group([0, 1])
    odd = dist.new_group([3, 1])
    alone = [dist.new_group([rank]) for rank in range(4)]
    assert total(here.rank) == 6
    assert total(here.rank, group=alone[here.rank]) == here.rank
    works = []
    if here.rank < 2:
        works.append(
            (dist.all_reduce(first := torch.ones(70_000), group=low, async_op=True), first)
        )
    if here.rank % 2:
        works.append((dist.all_reduce(second := torch.ones(9), group=odd, async_op=True), second))
    for work, tensor in works:
        work.wait()
        assert (tensor == 2).all()
    if here.rank % 2:
        tensor = torch.tensor([float(here.rank)])
        dist.broadcast(tensor, 3, group=odd)
        assert tensor.item() == 3
        outputs = [torch.zeros(1), torch.zeros(1)]
        dist.all_gather(outputs, torch.tensor([float(here.rank)]), group=odd)
        assert [output.item() for output in outputs] == [1, 3]  # torch sorts a group's ranks
    for one in [low, odd, *alone]:
        if one != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(one)
    assert total(here.rank) == 6


@ranks(2)
def test_gloo_and_ringcomm_side_by_side():
    other = dist.new_group(backend="gloo")
    for count in (3, 50_000):
        assert total(1, count) == 2
        assert total(1, count, group=other) == 2
    dist.destroy_process_group(other)


@ranks(2, backend=None)
def test_destroyed_and_made_again():
    threads = len(os.listdir("/proc/self/task"))
    files = len(os.listdir("/proc/self/fd"))
    for attempt in range(5):
        with group(f"attempt{attempt}"):
            assert total() == 2
    assert len(os.listdir("/proc/self/task")) <= threads + 1
    assert len(os.listdir("/proc/self/fd")) <= files + 1


@ranks(2, backend=None)
def test_one_rank_leaves_early_the_other_is_told():
    here = place()
    with group():
        dist.barrier()
        start = time.monotonic()
        if here.rank == 0:
            with pytest.raises(RuntimeError, match=r"rank 1"):
                dist.all_reduce(torch.ones(3))
            assert time.monotonic() - start < 3


@ranks(2, backend=None)
def test_destroy_with_operations_in_flight():
    here = place()
    start = time.monotonic()
    with group():
        dist.barrier()
        if here.rank == 0:
            work = dist.all_reduce(torch.ones(300_000), async_op=True)
    if here.rank == 0:
        with pytest.raises(RuntimeError, match=r"destroyed|rank 1"):
            work.wait()
    assert time.monotonic() - start < 3


@ranks(1, backend=None)
def test_a_world_of_one():
    with group():
        tensor = torch.arange(5.0)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            dist.all_reduce(tensor, op)
        dist.broadcast(tensor, 0)
        dist.barrier()
        outputs = [torch.zeros(5)]
        dist.all_gather(outputs, tensor)
        assert torch.equal(outputs[0], torch.arange(5.0))
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(3.0))
        assert torch.equal(tensor, torch.arange(5.0) * 3)


@ranks(2, backend=None)
def test_missing_rank_is_named():
    here = place()
    if here.rank == 1:
        return
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"(?i)timed out.*rank 1"):
        start_group(timeout=timedelta(seconds=1))
    assert 0.9 < time.monotonic() - start < 4


# --- stores


@pytest.mark.parametrize("kind", ["tcp", "file", "prefix", "env", "file-url"])
@ranks(2, backend=None)
def test_store(kind, folder):
    here = place()
    arguments = {"rank": here.rank, "world_size": here.world, "timeout": LIMIT}
    if kind == "file":
        arguments["store"] = dist.FileStore(f"{folder}/store", here.world)
    elif kind == "file-url":
        arguments["init_method"] = f"file://{folder}/url"
    elif kind == "prefix":
        arguments["store"] = dist.PrefixStore("a/b", dist.PrefixStore("%", here.store))
    else:
        if here.rank == 0:
            server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            here.store.set("port", str(server.port))
        port = int(here.store.get("port"))
        if kind == "tcp":
            arguments["store"] = dist.TCPStore("127.0.0.1", port)
        else:
            os.environ.update(MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    try:
        dist.init_process_group("ringcomm", **arguments)
        assert total(here.rank + 1) == 3
        dist.destroy_process_group()
    finally:
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    here.store.set(f"done{here.rank}", "1")
    here.store.wait([f"done{1 - here.rank}"])  # the server lives as long as it is needed


@ranks(1, backend=None)
def test_hash_store():
    """It is of one process: two backends in it, one a thread, meet there."""
    import threading

    from ringcomm import _C

    store, sums = dist.HashStore(), {}

    def run(rank):
        backend = _C.RingBackend(store, rank, 2, ringcomm.Options(timeout=LIMIT), "threads")
        tensor = torch.full((1000,), rank + 1.0)
        backend.allreduce([tensor]).wait()
        sums[rank] = float(tensor.sum())
        backend.shutdown()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert sums == {0: 3000.0, 1: 3000.0}


# --- options


@pytest.mark.parametrize(
    "options",
    [
        {"lanes": 3},
        {"progress_threads": 2},
        {"progress_threads": 2, "lanes": 4},
        {"slice_bytes": 4096},
        {"slice_bytes": 1048576, "lanes": 2},
        {"socket_buffer_bytes": 0},
        {"socket_buffer_bytes": 4096, "slice_bytes": 4099},
        {"spin_micros": 0},
        {"isa": "scalar"},
        {"direct_bytes": 0, "scatter_gather_bytes": 0},
        {"direct_bytes": 10_000_000},
        {"scatter_gather_bytes": 100_000_000},
        {"algorithms": "all_reduce=ring,broadcast=chain,all_gather=ring,barrier=dissemination"},
        {"interfaces": "lo"},
        {"interfaces": "127.0.0.0/8"},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
@ranks(3, backend=None)
def test_results_under_options(options):
    here = place()
    with group(pg_options=ringcomm.Options(**options)):
        for count in (1, 1000, 100_001, 1_000_001):
            tensor = torch.arange(count, dtype=torch.int64) * (here.rank + 1)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.arange(count) * 6)
            dist.broadcast(tensor.add_(here.rank), 2)
            assert torch.equal(tensor, torch.arange(count) * 6 + 2)
        whole = torch.empty(3 * 200_000, dtype=torch.int32)
        dist.all_gather_into_tensor(whole, torch.full((200_000,), here.rank, dtype=torch.int32))
        assert torch.equal(whole.view(3, -1).amax(1), torch.arange(3, dtype=torch.int32))
        assert torch.equal(whole.view(3, -1).amin(1), torch.arange(3, dtype=torch.int32))
        dist.barrier()


@ranks(2, backend=None)
def test_rank_0_s_group_options_hold_for_all():
    here = place()
    mine = {"lanes": 2, "slice_bytes": 8192} if here.rank == 0 else {"lanes": 5}
    with group(pg_options=ringcomm.Options(**mine)):
        assert total(1, 2_000_000) == 2
        assert total(1, 3) == 2


@ranks(2, backend=None)
def test_options_from_the_environment():
    os.environ["RINGCOMM_LANES"] = "2"
    try:
        with group():
            assert total(1, 1_000_000) == 2
        os.environ["RINGCOMM_LANES"] = "many"
        with pytest.raises(ValueError, match=r"option lanes is 'many'.* from 1 to 64"):
            start_group("bad")
        assert not dist.is_initialized()
    finally:
        del os.environ["RINGCOMM_LANES"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"algorithms": "all_reduce=tree"}, r"'tree'; allowed: auto, direct, scatter-gather, ring"),
        ({"algorithms": "reduce_all=ring"}, r"'reduce_all'.*allowed: all_reduce"),
        ({"algorithms": "ring"}, r"'ring' is not of the form"),
        ({"isa": "mmx"}, r"\"mmx\"; allowed: auto, scalar"),
        ({"log_level": "loud"}, r"log_level is 'loud'; allowed: debug, info, warning, error"),
        ({"interfaces": "nosuch0"}, r"nosuch0"),
        ({"congestion": "nosuch"}, r"nosuch"),
    ],
    ids=str,
)
@ranks(2, backend=None)
def test_bad_option_value_says_what_is_allowed(options, text):
    gc.collect()  # a group that is not collected yet keeps the process's options
    start = time.monotonic()
    with pytest.raises((ValueError, RuntimeError), match=text):
        start_and_use(pg_options=ringcomm.Options(**options), timeout=timedelta(seconds=5))
    assert time.monotonic() - start < 4
    if dist.is_initialized():
        dist.destroy_process_group()
    with group("after"):
        assert total() == 2


@ranks(1, backend=None)
def test_options_of_another_backend_are_refused():
    options = dist.ProcessGroupGloo._Options()
    with pytest.raises(TypeError, match=r"pg_options must be a ringcomm\.Options or None, not"):
        start_group(pg_options=options)


# --- secrets


@pytest.mark.parametrize("count", [3, 500_000])
@ranks(3, backend=None)
def test_same_secret(count):
    with group(pg_options=ringcomm.Options(secret="open sesame")):
        assert total(1, count) == 3


@ranks(2, backend=None)
def test_different_secrets_fail_at_once_on_all_ranks():
    start = time.monotonic()
    options = ringcomm.Options(secret=f"mine {place().rank}")
    with pytest.raises(RuntimeError, match=r"secrets of rank 0 and of rank 1 differ"):
        start_and_use(pg_options=options, timeout=timedelta(seconds=10))
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("who", [0, 1])
@ranks(2, backend=None)
def test_secret_on_one_rank_only(who):
    here = place()
    options = ringcomm.Options(secret="mine") if here.rank == who else ringcomm.Options()
    start = time.monotonic()
    with pytest.raises((ValueError, RuntimeError), match=r"secret.*same value on all ranks"):
        start_and_use(pg_options=options, timeout=timedelta(seconds=10))
    assert time.monotonic() - start < 3
    if dist.is_initialized():
        dist.destroy_process_group()
