"""Ranks that are late, stopped, or never there: an error in time that says whom all wait for."""

from __future__ import annotations

import signal
import time

import pytest
import torch
import torch.distributed as dist

from fault.harness import Link, Ranks, failure_of

TIMEOUT = 2.0


def reduce_until_error(link: Link) -> None:
    link.start_group(timeout=TIMEOUT)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    link.say("ready")
    link.until_error(lambda: dist.all_reduce(tensor))


@pytest.mark.parametrize(("world", "victim"), [(2, 1), (4, 2)])
def test_stopped(world: int, victim: int) -> None:
    with Ranks(reduce_until_error, world) as ranks:
        ranks.all_say("ready")
        time.sleep(0.1)
        stopped = ranks.send_signal(victim, signal.SIGSTOP)
        others = ranks.others(victim)
        words = [f"rank {victim} (", "2000ms", "all_reduce #"]
        ranks.check_errors(others, stopped, TIMEOUT + 1.0, words, least=TIMEOUT - 0.2)
        going_on = ranks.send_signal(victim, signal.SIGCONT)
        ranks.check_errors([victim], going_on, 1.0, [])
        ranks.check_end(sorted(ranks.pipes))


def one_never_calls(link: Link) -> None:
    link.start_group(timeout=TIMEOUT)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    link.say("ready")
    if link.rank == 1:
        link.wait_for_word()
    link.until_error(lambda: dist.all_reduce(tensor))


@pytest.mark.parametrize("world", [2, 4])
def test_one_never_calls(world: int) -> None:
    with Ranks(one_never_calls, world) as ranks:
        ranks.all_say("ready")
        called = time.monotonic()
        words = ["rank 1 (", "2000ms", "all_reduce #"]
        ranks.check_errors(ranks.others(1), called, TIMEOUT + 1.0, words, least=TIMEOUT - 0.5)
        ranks.tell(1)
        ranks.check_errors([1], time.monotonic(), 1.0, ["rank 1 ("])
        ranks.check_end(sorted(ranks.pipes))


def never_called_first(link: Link) -> None:
    link.start_group(timeout=TIMEOUT)
    tensor = torch.ones(1000)
    link.say("ready")
    if link.rank == link.extra["silent"]:
        link.wait_for_word()
    link.until_error(lambda: dist.all_reduce(tensor))


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_one_never_makes_the_first_call(silent: int) -> None:
    extra = {rank: {"silent": silent} for rank in range(3)}
    with Ranks(never_called_first, 3, extra=extra) as ranks:
        called = max(event.at for event in ranks.all_say("ready").values())
        others = ranks.others(silent)
        ranks.check_errors(others, called, TIMEOUT + 1.0, [f"rank {silent} ("], least=TIMEOUT - 0.5)


def short_wait(link: Link) -> None:
    link.start_group()
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    if link.rank == 1:
        time.sleep(1.0)
        dist.all_reduce(tensor)
        return
    from datetime import timedelta

    work = dist.all_reduce(tensor, async_op=True)
    link.say("short", failure_of(lambda: work.wait(timedelta(milliseconds=200))))
    work.wait()
    link.say("value", tensor[0].item())


def test_a_wait_with_a_timeout_of_its_own_gives_up_in_time_and_harms_nothing() -> None:
    with Ranks(short_wait, 2) as ranks:
        failure = ranks.event(0, "short").value
        assert failure is not None
        assert 0.2 <= failure.took < 0.7
        assert "200ms" in failure.text
        assert ranks.event(0, "value").value == 4.0
        ranks.check_end([0, 1])


def join(link: Link) -> None:
    link.say("starting")
    link.say("joined", failure_of(lambda: link.start_group(timeout=TIMEOUT)))


@pytest.mark.parametrize(
    ("there", "missing"), [([0, 2], "rank 1 of 3"), ([0], "ranks 1, 2 of 3"), ([1], "rank 0 of 3")]
)
def test_missing_ranks_are_named_when_joining_takes_too_long(
    there: list[int], missing: str
) -> None:
    with Ranks(join, 3, start=there) as ranks:
        ranks.all_say("starting")
        for rank in there:
            failure = ranks.event(rank, "joined", TIMEOUT + 5).value
            assert failure is not None
            assert TIMEOUT - 0.1 <= failure.took < TIMEOUT + 1.0, failure.text
            assert missing in failure.text
        ranks.check_end(there)
