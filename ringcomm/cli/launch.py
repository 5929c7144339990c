"""Start a command once for each rank on this machine, and end all of them when one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO

from ringcomm.testing.ranks import (
    die_with_parent,
    forget_launcher,
    rank_environment,
    reserve_port,
)

# No option of the backend, whose variables begin with RINGCOMM_.
_LAUNCHED = "_RINGCOMM_LAUNCHED"
_POLL_S = 0.05
_TAIL_LINES = 20


class LaunchError(RuntimeError):
    """A rank exited with an error, or the ranks did not end in time."""


def tie_to_launcher() -> None:
    """Called by a rank: end with the process that started it, if that was ``launch``.

    A rank that torchrun or a shell started must not: it may be meant to outlive its parent.
    """
    if _LAUNCHED in os.environ:
        die_with_parent()


@contextmanager
def _terminate_as_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the ranks are ended when their launcher is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Ranks:
    """The started processes. Rank 0 writes to this terminal, the others to files."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.outputs: list[IO[bytes] | None] = []

    def start(self, command: Sequence[str], nprocs: int, port: int) -> None:
        environment = forget_launcher(dict(os.environ)) | {_LAUNCHED: "1"}
        for rank in range(nprocs):
            output = None if rank == 0 else tempfile.TemporaryFile()  # noqa: SIM115
            self.outputs.append(output)
            process = subprocess.Popen(
                list(command),
                env=environment | rank_environment(rank, nprocs, port),
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
            )
            self.processes.append(process)

    def failed(self) -> list[int]:
        return [rank for rank, process in enumerate(self.processes) if process.poll()]

    def running(self) -> list[int]:
        return [rank for rank, process in enumerate(self.processes) if process.poll() is None]

    def describe(self, rank: int) -> str:
        code = self.processes[rank].returncode
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        output = self.outputs[rank]
        if output is None:
            return f"rank {rank} {how} (its output is above)"
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([f"rank {rank} {how}; the end of its output:", *lines])

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for output in self.outputs:
            if output is not None:
                output.close()


def launch(
    command: Sequence[str], nprocs: int, *, timeout: float | None = None, grace: float = 3.0
) -> None:
    """Run ``command`` as ``nprocs`` ranks over loopback and wait for all of them.

    Rank 0 has this process's output; what the other ranks print is shown only if they fail.
    No rank outlives the call.

    Args:
        command: the program and its arguments, the same for every rank.
        nprocs: the number of ranks, at least 1.
        timeout: seconds for all ranks to end; None is no limit.
        grace: seconds the other ranks get to end by themselves, once one has failed.

    Raises:
        LaunchError: a rank failed or the time is over; the text has the rank and its output.
        ValueError: ``nprocs`` is below 1.
    """
    if nprocs < 1:
        raise ValueError(f"nprocs is {nprocs}, must be at least 1")
    deadline = None if timeout is None else time.monotonic() + timeout
    ranks = _Ranks()
    with reserve_port() as port, _terminate_as_exit():
        try:
            ranks.start(command, nprocs, port)
            _wait(ranks, deadline, timeout, grace)
        finally:
            ranks.end()


def _wait(ranks: _Ranks, deadline: float | None, timeout: float | None, grace: float) -> None:
    while ranks.running() and not ranks.failed():
        if deadline is not None and time.monotonic() > deadline:
            late = ", ".join(map(str, ranks.running()))
            raise LaunchError(f"after {timeout:g} s still running: rank {late}")
        time.sleep(_POLL_S)
    end = time.monotonic() + grace
    while ranks.failed() and ranks.running() and time.monotonic() < end:
        time.sleep(_POLL_S)
    if ranks.failed():
        raise LaunchError("\n".join(ranks.describe(rank) for rank in ranks.failed()))
