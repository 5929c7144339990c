"""A rank that is killed or ends: every other one raises within a second and names it."""

from __future__ import annotations

import signal
import time

import pytest
import torch
import torch.distributed as dist

from fault.harness import Link, Ranks

ELEMENTS = [1000, 4_000_000]


def reduce_until_error(link: Link) -> None:
    link.start_group()
    tensor = torch.ones(link.extra["elements"])
    dist.all_reduce(tensor)
    link.say("ready")
    link.until_error(lambda: dist.all_reduce(tensor))


@pytest.mark.parametrize("elements", ELEMENTS)
@pytest.mark.parametrize(("world", "victim"), [(2, 0), (2, 1), (3, 1), (4, 2)])
def test_killed_during_all_reduce(world: int, victim: int, elements: int) -> None:
    extra = {rank: {"elements": elements} for rank in range(world)}
    with Ranks(reduce_until_error, world, extra=extra) as ranks:
        ranks.all_say("ready")
        time.sleep(0.1)
        killed = ranks.send_signal(victim, signal.SIGKILL)
        ranks.check_errors(ranks.others(victim), killed, 1.0, [f"rank {victim} ("])
        ranks.check_end(ranks.others(victim))


@pytest.mark.parametrize("algorithm", ["ring", "direct", "scatter-gather"])
def test_killed_far_along_the_ring(algorithm: str) -> None:
    extra = {rank: {"elements": 1000} for rank in range(5)}
    environment = {"RINGCOMM_ALGORITHMS": f"all_reduce={algorithm}"}
    with Ranks(reduce_until_error, 5, extra=extra, environment=environment) as ranks:
        ranks.all_say("ready")
        time.sleep(0.1)
        killed = ranks.send_signal(2, signal.SIGKILL)
        ranks.check_errors(ranks.others(2), killed, 1.0, ["rank 2 ("])


def wait_then_reduce(link: Link) -> None:
    link.start_group()
    link.say("ready")
    link.wait_for_word()
    tensor = torch.ones(1000)
    link.until_error(lambda: dist.all_reduce(tensor))


@pytest.mark.parametrize(("world", "victim"), [(2, 1), (3, 1), (2, 0), (3, 0)])
def test_killed_before_the_first_operation(world: int, victim: int) -> None:
    with Ranks(wait_then_reduce, world) as ranks:
        ranks.all_say("ready")
        ranks.send_signal(victim, signal.SIGKILL)
        ranks.processes[victim].join()
        called = time.monotonic()
        for rank in ranks.others(victim):
            ranks.tell(rank)
        ranks.check_errors(ranks.others(victim), called, 2.0, [f"rank {victim} ("])


def first_ends(link: Link) -> None:
    link.start_group()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    link.say("ready")
    if link.rank == 0:
        link.wait_for_word()
        if link.extra["destroy"]:
            dist.destroy_process_group()
            link.say("destroyed")
            link.wait_for_word()
        return
    link.until_error(lambda: dist.all_reduce(tensor))


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("destroy", [False, True])
def test_one_leaves_while_others_wait(world: int, destroy: bool) -> None:
    extra = {rank: {"destroy": destroy} for rank in range(world)}
    with Ranks(first_ends, world, extra=extra) as ranks:
        ranks.all_say("ready")
        time.sleep(0.2)
        left = time.monotonic()
        ranks.tell(0)
        words = ["rank 0 (", "left the group"] if destroy else ["rank 0 ("]
        ranks.check_errors(ranks.others(0), left, 1.0, words)
        if destroy:
            ranks.event(0, "destroyed", 1.0)
            ranks.tell(0)
        ranks.check_end(sorted(ranks.pipes))


def wait_asynchronously(link: Link) -> None:
    link.start_group()
    tensors = [torch.ones(100_000) for _ in range(8)]
    dist.all_reduce(tensors[0])
    link.say("ready")
    if link.rank == 0:
        link.wait_for_word()
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    future = works[-1].get_future()
    link.until_error(works[0].wait)
    assert all(work.is_completed() and work.exception() is not None for work in works)
    try:
        future.wait()
    except Exception as error:
        link.say("future", str(error))


def test_killed_while_operations_are_in_flight() -> None:
    with Ranks(wait_asynchronously, 3) as ranks:
        ranks.all_say("ready")
        time.sleep(0.2)
        killed = ranks.send_signal(0, signal.SIGKILL)
        ranks.check_errors([1, 2], killed, 1.0, ["rank 0 ("])
        for rank in (1, 2):
            assert "rank 0 (" in ranks.event(rank, "future", 2.0).value
        ranks.check_end([1, 2])
