"""Ranks that may be killed, stopped or cut off, and what they say of it.

A test starts a function on every rank (`Ranks(function, world)`). The function gets a `Link`, over
which it tells what happens, each event with its time on the one clock that all processes share.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch.distributed as dist

from ringcomm.testing.ranks import die_with_parent, rank_environment

# The forkserver imports these once; each rank is then a fork of it, made in milliseconds.
PRELOAD = ["torch", "torch.distributed", "ringcomm", "fault.harness"]
START_TIME = 40.0  # the first rank waits until the forkserver has imported torch

_context: Any = None
_stores: list[dist.TCPStore] = []
_names = iter(range(1_000_000))


@dataclass(frozen=True)
class Event:
    """What a rank said, and when (time.monotonic())."""

    name: str
    value: Any
    at: float


@dataclass(frozen=True)
class Failure:
    """How a call failed: the exception's type and text, and how long the call took."""

    kind: str
    text: str
    took: float


@dataclass
class Link:
    """A rank's side: who it is, and its line to the test."""

    rank: int
    world: int
    store_host: str
    store_port: int
    prefix: str
    pipe: Connection
    extra: dict[str, Any] = field(default_factory=dict)

    def say(self, name: str, value: Any = None) -> None:
        self.pipe.send(Event(name, value, time.monotonic()))

    def wait_for_word(self, limit: float = 60.0) -> Any:
        """Until the test calls `tell`."""
        if not self.pipe.poll(limit):
            raise TimeoutError("the test gave no word")
        return self.pipe.recv()

    def start_group(self, timeout: float = 30.0, **arguments: Any) -> None:
        if self.store_port == 0:
            dist.init_process_group(
                "ringcomm",
                init_method=f"tcp://{self.store_host}",
                rank=self.rank,
                world_size=self.world,
                timeout=timedelta(seconds=timeout),
                **arguments,
            )
            return
        store = dist.TCPStore(self.store_host, self.store_port, is_master=False)
        dist.init_process_group(
            "ringcomm",
            store=dist.PrefixStore(self.prefix, store),
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=timeout),
            **arguments,
        )

    def until_error(self, call: Callable[[], Any], limit: float = 40.0) -> None:
        """Repeats the call until it raises, and says how; then calls once more and says that."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            failure = failure_of(call)
            if failure is not None:
                self.say("error", failure)
                self.say("again", failure_of(call))
                return
        self.say("no error")


def failure_of(call: Callable[[], Any]) -> Failure | None:
    start = time.monotonic()
    try:
        call()
    except Exception as error:
        return Failure(type(error).__name__, str(error), time.monotonic() - start)
    return None


def _serve(function: Callable[[Link], None], link: Link, environment: dict[str, str]) -> None:
    die_with_parent()
    os.environ.update(environment)
    enter = link.extra.pop("enter", None)
    if enter is not None:
        enter()
    function(link)
    link.say("end")


def _make_context() -> Any:
    global _context
    if _context is None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # what the forkserver hands on
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(PRELOAD)
        _stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    return _context


class Ranks:
    """The ranks of one test, as a context: whatever is left at its end is killed."""

    def __init__(
        self,
        function: Callable[[Link], None],
        world: int,
        *,
        start: list[int] | None = None,
        environment: dict[str, str] | None = None,
        extra: dict[int, dict[str, Any]] | None = None,
        store: tuple[str, int] | None = None,
    ) -> None:
        context = _make_context()
        prefix = f"{os.getpid()}.{next(_names)}"
        self.world = world
        self.pipes: dict[int, Connection] = {}
        self.processes: dict[int, Any] = {}
        self.events: dict[int, list[Event]] = {}
        for rank in range(world) if start is None else start:
            host, port = store or ("127.0.0.1", _stores[0].port)
            ours, theirs = context.Pipe()
            link = Link(rank, world, host, port, prefix, theirs, (extra or {}).get(rank, {}))
            variables = {**rank_environment(rank, world, 1), **(environment or {})}
            process = context.Process(target=_serve, args=(function, link, variables))
            process.start()
            theirs.close()
            self.pipes[rank] = ours
            self.processes[rank] = process
            self.events[rank] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join()

    def pid(self, rank: int) -> int:
        return int(self.processes[rank].pid)

    def event(self, rank: int, name: str, limit: float = START_TIME) -> Event:
        """Waits until the rank says this; fails when it ends or time is up before."""
        end = time.monotonic() + limit
        while True:
            for event in self.events[rank]:
                if event.name == name:
                    return event
            said = [event.name for event in self.events[rank]]
            left = end - time.monotonic()
            assert left > 0, f"rank {rank} did not say '{name}' in {limit} s, only {said}"
            try:
                if self.pipes[rank].poll(left):
                    self.events[rank].append(self.pipes[rank].recv())
            except EOFError:
                raise AssertionError(f"rank {rank} ended before '{name}', after {said}") from None

    def all_say(self, name: str, ranks: list[int] | None = None) -> dict[int, Event]:
        return {rank: self.event(rank, name) for rank in (ranks or sorted(self.pipes))}

    def others(self, *ranks: int) -> list[int]:
        return [rank for rank in sorted(self.pipes) if rank not in ranks]

    def tell(self, rank: int, word: Any = None) -> None:
        self.pipes[rank].send(word)

    def send_signal(self, rank: int, number: signal.Signals) -> float:
        """Gives the time at which it was sent."""
        os.kill(self.pid(rank), number)
        return time.monotonic()

    def check_errors(
        self, ranks: list[int], since: float, limit: float, words: list[str], least: float = 0.0
    ) -> None:
        """All of the ranks raised in time with these words, and again at once when called again."""
        for rank in ranks:
            event = self.event(rank, "error", limit + 5)
            after = event.at - since
            assert least <= after < limit, f"rank {rank} took {after:.2f} s: {event.value.text}"
            for word in words:
                assert word in event.value.text, f"rank {rank}: {event.value.text}"
            again = self.event(rank, "again", 5).value
            assert again is not None, f"rank {rank}: a later call did not raise"
            assert again.took < 0.2, f"rank {rank}: a later call took {again.took:.2f} s"
            first, later = cause_of(event.value.text), cause_of(again.text)
            assert later == first, f"rank {rank}: first '{first}', later '{later}'"

    def check_end(self, ranks: list[int], limit: float = 5.0) -> None:
        """The ranks' functions have returned, and their processes end by themselves."""
        for rank in ranks:
            self.event(rank, "end", limit)
            self.processes[rank].join(limit)
            assert self.processes[rank].exitcode == 0


def cause_of(text: str) -> str:
    """An error's text without the call that it came from."""
    return text.split(" failed: ", 1)[-1].removeprefix("ringcomm: ").split("\n", 1)[0]


def listening_port(pid: int) -> int:
    """The port on which the process listens, as the kernel tells."""
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            next(lines)
            for line in lines:
                columns = line.split()
                if columns[3] == "0A" and columns[9] in inodes:
                    ports.add(int(columns[1].rsplit(":", 1)[1], 16))
    assert len(ports) == 1, f"process {pid} listens on {sorted(ports)}"
    return ports.pop()
