"""Run one function in several processes, a rank each, and collect what they return."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from ringcomm.testing.ranks import (
    die_with_parent,
    forget_launcher,
    rank_environment,
    reserve_port,
)

T = TypeVar("T")


@dataclass(frozen=True)
class RankFailure:
    """How one rank failed: its number, and its traceback or how its process ended."""

    rank: int
    text: str


class SpawnError(RuntimeError):
    """One rank or more failed, or ran out of time. ``failures`` has them in the order seen."""

    def __init__(self, failures: list[RankFailure]) -> None:
        self.failures = failures
        super().__init__(
            "\n".join(f"rank {failure.rank} {failure.text.rstrip()}" for failure in failures)
        )


@dataclass
class _Rank:
    """One started process and the end of the pipe on which its result arrives."""

    number: int
    process: SpawnProcess
    pipe: Connection


def _bootstrap(payload: bytes, environment: dict[str, str], pipe: Connection) -> None:
    """Run in the child: set the environment first, since unpickling imports user modules."""
    die_with_parent()
    kept = forget_launcher(dict(os.environ))
    os.environ.clear()
    os.environ.update(kept)
    os.environ.update(environment)
    try:
        function, args = pickle.loads(payload)
        answer: tuple[bool, Any] = (True, function(*args))
        message = pickle.dumps(answer)
    except BaseException:
        message = pickle.dumps((False, traceback.format_exc()))
    pipe.send_bytes(message)
    pipe.close()


def _start(
    payload: bytes, nprocs: int, port: int, extra: Mapping[str, str], ranks: list[_Rank]
) -> None:
    context = multiprocessing.get_context("spawn")
    for number in range(nprocs):
        environment = {**rank_environment(number, nprocs, port), **extra}
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(
            target=_bootstrap, args=(payload, environment, writer), name=f"rank{number}"
        )
        ranks.append(_Rank(number, process, reader))
        process.start()
        writer.close()


def _ending(process: SpawnProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        return f"was killed by signal {-code}"
    return f"exited with {code}"


def _receive(rank: _Rank) -> tuple[bool, Any]:
    """Return (ok, result or text) of a rank whose pipe has data or is closed."""
    try:
        answer: tuple[bool, Any] = pickle.loads(rank.pipe.recv_bytes())
    except EOFError:
        rank.process.join(timeout=5)
        return False, f"{_ending(rank.process)} without a result"
    return answer if answer[0] else (False, f"failed:\n{answer[1]}")


def _check_exits(ranks: list[_Rank], deadline: float) -> None:
    """Wait for the interpreters to end: a crash or a hang there is a failure as well."""
    failures: list[RankFailure] = []
    for rank in ranks:
        rank.process.join(timeout=max(0.1, deadline - time.monotonic()))
        if rank.process.exitcode is None:
            failures.append(RankFailure(rank.number, "returned, but its interpreter did not end"))
        elif rank.process.exitcode != 0:
            failures.append(RankFailure(rank.number, f"returned, then {_ending(rank.process)}"))
    if failures:
        raise SpawnError(failures)


def _collect(ranks: list[_Rank], timeout: float, grace: float) -> list[Any]:
    deadline = time.monotonic() + timeout
    pending = {rank.pipe: rank for rank in ranks}
    results: dict[int, Any] = {}
    failures: list[RankFailure] = []
    while pending:
        ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = pending.pop(pipe)
            ok, value = _receive(rank)
            if ok:
                results[rank.number] = value
                continue
            if not failures:
                # The others now learn of it; what they say belongs into the report too.
                deadline = min(deadline, time.monotonic() + grace)
            failures.append(RankFailure(rank.number, value))
    if not failures and not pending:
        _check_exits(ranks, deadline)
        return [results[rank.number] for rank in ranks]
    late = f"was still running {grace:g} s later" if failures else f"did not end in {timeout:g} s"
    failures += [RankFailure(rank.number, late) for rank in pending.values()]
    raise SpawnError(failures)


def spawn(
    function: Callable[..., T],
    nprocs: int = 2,
    args: tuple[Any, ...] = (),
    *,
    timeout: float = 60.0,
    grace: float = 3.0,
    env: Mapping[str, str] | None = None,
) -> list[T]:
    """Call ``function(*args)`` in ``nprocs`` new processes and return the results in rank order.

    Each process finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its
    environment, so that ``init_process_group(backend)`` works without further arguments.
    No process outlives the call.

    Args:
        function: a function of a module that the new processes can import.
        nprocs: the number of ranks, at least 1.
        args: the same arguments for every rank; they must be picklable.
        timeout: seconds for all ranks to end.
        grace: seconds the other ranks get to report, once one has failed.
        env: further environment variables, set before the function's module is imported.

    Returns:
        What each rank returned, in rank order.

    Raises:
        SpawnError: a rank raised, died, or did not end in time; it names the rank.
        ValueError: ``nprocs`` is below 1.
    """
    if nprocs < 1:
        raise ValueError(f"nprocs is {nprocs}, must be at least 1")
    ranks: list[_Rank] = []
    with reserve_port() as port:
        try:
            _start(pickle.dumps((function, args)), nprocs, port, env or {}, ranks)
            return _collect(ranks, timeout, grace)
        finally:
            for rank in ranks:
                if rank.process.pid is not None:
                    rank.process.kill()
                    rank.process.join()
                rank.pipe.close()
