"""Runs test functions on ranks that are started once.

    @pytest.mark.parametrize("size", [1, 10])
    @ranks(2, 5)
    def test_something(size): ...

calls the function on each rank of a group of 2 for both sizes, then on each of 5. Each is a test of
its own. What the function gives to `agree` has to be equal on all ranks.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
import torch.distributed as dist

from dist.worker import Answer, Case, serve

# The forkserver imports these once; each rank is then a fork of it, made in milliseconds.
PRELOAD = [
    *("numpy", "pytest", "torch", "torch.distributed", "ringcomm", "dist.worker"),
    # Seconds for every rank that came to need them.
    *("torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.pipelining"),
]
GRACE = 4.0


class RankError(AssertionError):
    """A case failed on some rank, or did not end."""


class Pool:
    """Ranks 0 to 7 as far as they have been needed, and the store at which they meet."""

    def __init__(self) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # what the forkserver hands on
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.group: tuple[int, str | None] | None = None
        self.epoch = 0
        atexit.register(self.close)  # before multiprocessing waits for its children

    def grow(self, world: int) -> None:
        for rank in range(len(self.pipes), world):
            ours, theirs = self.context.Pipe()
            process = self.context.Process(target=serve, args=(theirs, rank, self.store.port))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(
        self,
        target: tuple[str, str],
        world: int,
        arguments: dict[str, Any],
        backend: str | None,
        timeout: float,
    ) -> list[Any]:
        """Returns the results by rank, or raises RankError; then all ranks are started anew."""
        self.grow(world)
        if backend is None or self.group != (world, backend):
            self.epoch += 1
            self.group = (world, backend)
            for pipe in self.pipes[world:]:
                pipe.send(None)  # leave the group
        for rank, pipe in enumerate(self.pipes[:world]):
            pipe.send(Case(*target, arguments, rank, world, backend, self.epoch))
        try:
            answers = self.collect(world, timeout)
        except BaseException:
            self.close()
            raise
        check_agreement(answers)
        return [answer.result for answer in answers]

    def collect(self, world: int, timeout: float) -> list[Answer]:
        deadline = time.monotonic() + timeout
        answers: dict[int, Answer] = {}
        failures: list[str] = []
        pending = {pipe: rank for rank, pipe in enumerate(self.pipes[:world])}
        while pending:
            ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = pending.pop(pipe)
                answers[rank] = answer = self.receive(pipe, rank)
                if answer.error is not None:
                    failures.append(f"--- rank {rank} of {world}:\n{answer.error}")
                    deadline = min(deadline, time.monotonic() + GRACE)
        if pending:
            failures.append(
                f"--- ranks {list(pending.values())} of {world} did not end the case in time"
            )
        if failures:
            raise RankError("\n".join(failures))
        return [answers[rank] for rank in range(world)]

    def receive(self, pipe: Connection, rank: int) -> Answer:
        try:
            answer: Answer = pipe.recv()
        except EOFError:
            process = self.processes[rank]
            process.join(timeout=5)
            return Answer(f"the process ended with {process.exitcode}")
        return answer

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()
        self.pipes, self.processes, self.group = [], [], None


def check_agreement(answers: list[Answer]) -> None:
    for rank, answer in enumerate(answers):
        if answer.agreed != answers[0].agreed:
            pairs = zip(answers[0].agreed, answer.agreed, strict=False)
            differing = [pair for pair in pairs if pair[0] != pair[1]]
            raise RankError(f"rank {rank} differs from rank 0: {differing or 'in number'}")


@functools.cache
def pool() -> Pool:
    return Pool()


def ranks(
    *worlds: int, backend: str | None = "ringcomm", timeout: float = 40.0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a test of a function that runs on every rank, for each of the world sizes.

    Args:
        worlds: the numbers of ranks.
        backend: of the default process group that it finds; None: it makes and destroys its own.
        timeout: seconds for one case.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def test(world: int, **arguments: Any) -> None:
            target = (function.__module__, function.__name__)
            pool().run(target, world, arguments, backend, timeout)

        own = inspect.Parameter("world", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.signature(function)
        test.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[own, *signature.parameters.values()]
        )
        test.on_rank = function  # type: ignore[attr-defined]
        return pytest.mark.parametrize("world", worlds)(test)

    return decorate
