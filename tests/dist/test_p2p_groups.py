"""send and recv again: first contact, options, threads, sub-groups, timeouts and refusals."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import ringcomm
from dist.pool import ranks
from dist.test_gather_broadcast import bits, part_of
from dist.test_p2p import filled, wait_all
from dist.worker import group, place
from dist.wrong import assert_group_works, assert_refused, raw


@pytest.mark.parametrize("count", [4, 300_000])
@ranks(3, backend=None)
def test_first_contact_from_the_higher_rank(count):
    """The lower rank has had no reason to connect, and is in no call at all."""
    here = place()
    with group():
        if here.rank == 2:
            work = dist.isend(filled(2.0, count), 0)
            if count == 4:
                start = time.monotonic()
                work.wait()
                assert time.monotonic() - start < 3
            here.store.set("sent", "1")
            work.wait()
        elif here.rank == 0:
            here.store.wait(["sent"])
            target = torch.zeros(count)
            dist.recv(target, 2)
            assert (target == 2).all()
        dist.barrier()


@pytest.mark.parametrize("settings", [{"lanes": 3}, {"slice_bytes": 4096}])
@ranks(3, backend=None)
def test_options(settings):
    here = place()
    with group(pg_options=ringcomm.Options(**settings)):
        works, targets = [], []
        for count in (0, 3, 5000, 700_000):
            for other in range(here.world):
                works.append(dist.isend(part_of(here.rank, count), other, tag=count))
                targets.append((torch.zeros(count), other))
                works.append(dist.irecv(targets[-1][0], other, tag=count))
        tensor = torch.ones(500_000)
        dist.all_reduce(tensor)
        wait_all(works)
        assert (tensor == 3).all()
        for target, other in targets:
            assert torch.equal(bits(target), bits(part_of(other, target.numel())))


@ranks(2)
def test_from_several_threads():
    here = place()
    failures = []

    def talk(tag):
        try:
            for step in range(40):
                count = 1 + step * 797 % 30_000
                target = torch.zeros(count)
                work = dist.isend(filled(float(tag + step), count), 1 - here.rank, tag=tag)
                dist.recv(target, 1 - here.rank, tag=tag)
                work.wait()
                assert (target == tag + step).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=talk, args=(100 * tag,)) for tag in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


@ranks(3)
def test_in_a_subgroup():
    here = place()
    pair = dist.new_group([0, 2])
    if here.rank == 2:
        dist.send(filled(1.0), 0, group=pair)
        dist.send(filled(2.0), group=pair, group_dst=0)
    elif here.rank == 0:
        target = torch.zeros(5)
        assert dist.recv(target, group=pair) == 2
        assert dist.recv(target, group=pair, group_src=1) in (1, 2)
        assert (target == 2).all()
    if here.rank != 1:
        dist.destroy_process_group(pair)


@ranks(2)
def test_wait_timeout_leaves_it_running():
    here = place()
    target = filled(float(here.rank))
    if here.rank == 0:
        work = dist.irecv(target, 1, tag=3)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=r"Timed out waiting 200ms .*recv from rank 1"):
            work.wait(timedelta(milliseconds=200))
        assert 0.19 < time.monotonic() - start < 1.5
        here.store.set("timed out", "1")
        work.wait()
        assert (target == 1).all()
    else:
        here.store.wait(["timed out"])
        dist.send(target, 0, tag=3)


TIMEOUTS = {
    "recv": (lambda: dist.recv(torch.zeros(3), 1), r"recv from rank 1.*rank 0.*rank 1"),
    "any": (lambda: dist.recv(torch.zeros(3)), r"recv from any rank.*rank 0"),
    "large-send": (
        lambda: dist.send(torch.zeros(100_000), 1, tag=4),
        r"send to rank 1 \(100000 x float32, tag 4\).*rank 0.*rank 1.*received",
    ),
}


@pytest.mark.parametrize("what", TIMEOUTS)
@ranks(2, backend=None)
def test_timeout_names_the_peer(what):
    here = place()
    call, text = TIMEOUTS[what]
    with group(timeout=timedelta(milliseconds=800)):
        dist.barrier()
        start = time.monotonic()
        if here.rank == 0:
            with pytest.raises(RuntimeError, match=f"(?i)timed out waiting 800ms.*{text}"):
                call()
            assert 0.75 < time.monotonic() - start < 2.5
        else:
            time.sleep(1.5)
            with pytest.raises(RuntimeError, match=text):
                dist.barrier()


DIFFERENCES = {
    "size": (filled(1.0, 4), filled(1.0, 5)),
    "dtype": (filled(1.0, 4), filled(1, 4, torch.int32)),
    "large-size": (filled(1.0, 100_000), filled(1.0, 100_001)),
    "large-to-small": (filled(1.0, 100_000), filled(1.0, 4)),
    "zero": (filled(1.0, 0), filled(1.0, 1)),
}


def pass_on(sent, expected):
    if place().rank == 0:
        dist.send(sent, 1, tag=9)
    else:
        dist.recv(expected, 0, tag=9)
    dist.barrier()  # a small message counts as sent when it is on its way


@pytest.mark.parametrize("early", ["sender", "receiver"])
@pytest.mark.parametrize("what", DIFFERENCES)
@ranks(2, backend=None)
def test_messages_that_do_not_fit_are_told_to_both(what, early):
    here = place()
    sent, expected = DIFFERENCES[what]
    with group():
        dist.barrier()
        start = time.monotonic()
        if (here.rank == 0) != (early == "sender"):
            time.sleep(0.2)
        with pytest.raises(RuntimeError) as error:
            pass_on(sent, expected)
        assert time.monotonic() - start < 1.2
        text = str(error.value)
        assert "rank 0" in text
        assert "rank 1" in text
        for tensor in (sent, expected):
            assert f"{tensor.numel()} x {str(tensor.dtype).removeprefix('torch.')}" in text


@pytest.mark.parametrize("size", [4, 100_000])
@ranks(2, backend=None)
def test_a_peer_that_has_left_is_named_at_once(size):
    here = place()
    with group():
        if here.rank == 1:
            dist.send(torch.ones(3), 0)
        else:
            dist.recv(torch.zeros(3), 1)
        dist.barrier()
        if here.rank == 0:
            here.store.wait(["left"])
            start = time.monotonic()
            with pytest.raises(RuntimeError, match=r"rank 1.*left"):
                dist.recv(torch.zeros(size), 1)
            assert time.monotonic() - start < 1.5
    if here.rank == 1:
        here.store.set("left", "1")


CALLS = {
    "send-too-large": (lambda: raw().send([torch.ones(1)], 2, 0), r"send: .*rank.*2.*0 to 1"),
    "send-negative": (lambda: raw().send([torch.ones(1)], -1, 0), r"send: .*rank.*-1.*0 to 1"),
    "recv-too-large": (lambda: raw().recv([torch.ones(1)], 2, 0), r"recv: .*rank.*2.*0 to 1"),
    "recv-negative": (lambda: raw().recv([torch.ones(1)], -1, 0), r"recv: .*rank.*-1.*0 to 1"),
    "send-two": (lambda: raw().send([torch.ones(1)] * 2, 1, 0), r"send: .*single-element.*2"),
    "recv-none": (lambda: raw().recv([], 1, 0), r"recv: .*single-element.*0"),
    "send-sparse": (lambda: raw().send([torch.eye(2).to_sparse()], 1, 0), r"send: .*layout"),
    "recv-overlapping": (
        lambda: raw().recv([torch.ones(1).expand(3)], 1, 0),
        r"recv: .*overlap",
    ),
    "any-overlapping": (
        lambda: raw().recv_anysource([torch.ones(1).expand(3)], 0),
        r"recvAnySource: .*overlap",
    ),
}


@pytest.mark.parametrize("call", CALLS)
@ranks(2)
def test_wrong_argument_is_named(call):
    assert_refused(*CALLS[call])


@ranks(2)
def test_objects():
    here = place()
    objects = ["text", {"rank": 0}, list(range(50_000))]
    if here.rank == 0:
        dist.send_object_list(objects, dst=1)
    else:
        received = [None] * 3
        assert dist.recv_object_list(received, src=0) == 0
        assert received == objects
    assert_group_works()


@ranks(3, backend=None)
def test_a_receive_from_anybody_outlives_those_who_leave():
    here = place()
    with group():
        if here.rank == 0:
            for _ in range(2):
                dist.recv(torch.zeros(1))
            here.store.wait(["left"])
            target = torch.zeros(1)
            assert dist.recv(target) == 1
            assert target.item() == 7
        else:
            dist.send(torch.zeros(1), 0)
        if here.rank == 1:
            here.store.wait(["left"])
            time.sleep(0.3)
            dist.send(torch.full((1,), 7.0), 0)
    if here.rank == 2:
        here.store.set("left", "1")
