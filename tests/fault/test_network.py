"""Hosts as network namespaces on one bridge: dead addresses, and links that are cut."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fault.harness import Link, Ranks, failure_of, listening_port

TIMEOUT = 3.0
NET = "10.213.7"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"rc-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        ip("netns", "del", name)
    return made


pytestmark = pytest.mark.skipif(
    not can_make_namespaces(), reason="needs root and ip netns to make network namespaces"
)


@dataclass(frozen=True)
class Enter:
    """Moves the process that calls it into a namespace."""

    namespace: str

    def __call__(self) -> None:
        with open(f"/run/netns/{self.namespace}") as file:
            assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) == 0


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Three namespaces NET.1 to NET.3, joined by a bridge in one of their own."""
    tag = f"rc{os.getpid()}"
    switch = f"{tag}s"
    names = [f"{tag}h{number}" for number in range(3)]
    made: list[str] = []
    try:
        ip("netns", "add", switch)
        made.append(switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
            port = f"port{number}"
            peer = ("type", "veth", "peer", "name", port, "netns", switch)
            ip("-n", name, "link", "add", "eth0", *peer)
            ip("-n", name, "addr", "add", f"{NET}.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", switch, "link", "set", port, "master", "br0", "up")
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def run_on(function: object, hosts: list[str], place: list[int]) -> Ranks:
    """Rank i on host place[i]; the store is with rank 0."""
    extra = {rank: {"enter": Enter(hosts[host])} for rank, host in enumerate(place)}
    store = (f"{NET}.{place[0] + 1}:29599", 0)
    environment = {"MASTER_ADDR": f"{NET}.{place[0] + 1}"}
    return Ranks(function, len(place), extra=extra, store=store, environment=environment)  # type: ignore[arg-type]


def cut(hosts: list[str], host: int) -> float:
    switch = hosts[0][:-2] + "s"
    ip("-n", switch, "link", "set", f"port{host}", "down")
    return time.monotonic()


def reduce_until_error(link: Link) -> None:
    link.start_group(timeout=TIMEOUT)
    tensor = torch.ones(200_000)
    dist.all_reduce(tensor)
    link.say("ready")
    link.until_error(lambda: dist.all_reduce(tensor))


@pytest.mark.parametrize("place", [[0, 1], [0, 1, 2], [0, 0, 1]])
def test_a_cut_link_is_an_error_within_the_timeout(hosts: list[str], place: list[int]) -> None:
    with run_on(reduce_until_error, hosts, place) as ranks:
        ranks.all_say("ready")
        time.sleep(0.2)
        since = cut(hosts, place[-1])
        last = len(place) - 1
        ranks.check_errors(ranks.others(last), since, TIMEOUT + 1.0, [f"rank {last} ("])
        ranks.check_errors([last], since, TIMEOUT + 1.0, ["rank "])


def survive(link: Link) -> None:
    link.start_group(timeout=20)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    link.say("ready")
    link.wait_for_word()
    tensor = torch.ones(1_000_000)
    start = time.monotonic()
    dist.all_reduce(tensor)
    link.say("reduced", (time.monotonic() - start, tensor.sum().item()))


def test_a_link_that_comes_back_before_the_timeout_is_no_error(hosts: list[str]) -> None:
    with run_on(survive, hosts, [0, 1]) as ranks:
        ranks.all_say("ready")
        cut(hosts, 1)
        for rank in (0, 1):
            ranks.tell(rank)
        time.sleep(1.0)
        ip("-n", hosts[0][:-2] + "s", "link", "set", "port1", "up")
        for rank in (0, 1):
            took, total = ranks.event(rank, "reduced", 20).value
            assert 0.5 < took < 10
            assert total == 2_000_000
        ranks.check_end([0, 1])


def first_call(link: Link) -> None:
    start = time.monotonic()
    link.start_group(timeout=20)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    link.say("reduced", (time.monotonic() - start, tensor[0].item()))


def test_an_address_that_swallows_what_is_sent_to_it_costs_little_time(hosts: list[str]) -> None:
    # Rank 1 offers a second address, in a subnet that rank 0 has too but where nobody answers:
    # of all offered addresses rank 0 takes those in its own subnets first.
    for number, host in enumerate(hosts[:2]):
        ip("-n", host, "link", "add", "dead0", "type", "veth", "peer", "name", "end0")
        ip("-n", host, "addr", "add", f"10.213.8.{number + 1}/24", "dev", "dead0")
        ip("-n", host, "link", "set", "dead0", "up")
        ip("-n", host, "link", "set", "end0", "up")
    with run_on(first_call, hosts, [0, 1]) as ranks:
        for rank in (0, 1):
            took, value = ranks.event(rank, "reduced").value
            assert value == 2
            assert took < 4.0
        ranks.check_end([0, 1])


DROPPED_TIME = 13.0


def call_through_firewall(link: Link) -> None:
    log = os.open(link.extra["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    link.start_group(timeout=DROPPED_TIME)
    link.say("joined")
    link.wait_for_word()
    tensor = torch.ones(10)
    link.say("error", failure_of(lambda: dist.all_reduce(tensor)))


def test_a_firewall_that_drops_packets_is_warned_of_and_named(
    hosts: list[str], tmp_path: Path
) -> None:
    # What rank 0 sends to rank 1's port vanishes on host 1; the store, on host 0, is reached.
    ip("-n", hosts[1], "route", "add", "blackhole", f"{NET}.1", "table", "77")
    logs = [tmp_path / f"log{rank}" for rank in range(2)]
    extra = {rank: {"enter": Enter(hosts[rank]), "log": str(logs[rank])} for rank in range(2)}
    store = (f"{NET}.1:29599", 0)
    environment = {"MASTER_ADDR": f"{NET}.1"}
    with Ranks(
        call_through_firewall, 2, extra=extra, store=store, environment=environment
    ) as ranks:
        ranks.all_say("joined")
        port = listening_port(ranks.pid(1))
        answers = ("from", "all", "ipproto", "tcp", "sport", str(port), "lookup", "77")
        ip("-n", hosts[1], "rule", "add", *answers)
        since = time.monotonic()
        for rank in (0, 1):
            ranks.tell(rank)
        time.sleep(11.5)
        at = f"{NET}.2:{port}"
        first, second = (log.read_text() for log in logs)
        assert first.count("still not connected with rank 1 (") == 1, first
        assert f"after 10 s: tried {at}: no answer" in first
        assert "RINGCOMM_PORT" in first
        assert "RINGCOMM_INTERFACES" in first
        assert second.count("still not connected with rank 0 (") == 1, second
        assert "no connection from it has arrived here (rank 1 (" in second
        assert f"listening at {at}" in second
        for rank, words in [(0, f"{at}: no answer"), (1, f"listening at {at}")]:
            event = ranks.event(rank, "error", DROPPED_TIME)
            assert event.value is not None
            assert words in event.value.text
            assert f"rank {1 - rank} (" in event.value.text
            assert DROPPED_TIME - 0.5 <= event.at - since < DROPPED_TIME + 1.0
        ranks.check_end([0, 1])
