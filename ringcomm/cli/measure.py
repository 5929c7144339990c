"""Time a collective over one backend, or over two in alternating rounds in the same processes."""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from ringcomm.cli.bench_ops import Case, Operation

_GIB = 1 << 30
_LEAST_ITERATIONS = 5
_MOST_ITERATIONS = 5000
_WARMUP = 3
_ROUNDS = 20  # with two backends: each goes first in half of them


@dataclass(frozen=True)
class Side:
    """A backend under measurement and the group that uses it (None: the default group)."""

    name: str
    group: dist.ProcessGroup | None


@dataclass(frozen=True)
class Plan:
    """How long to measure: ``iterations`` for each row, or None to fill ``min_time`` seconds."""

    iterations: int | None
    min_time: float


@dataclass(frozen=True)
class Timing:
    """What one backend took for a case.

    Seconds are those of the slowest rank in each iteration; ``cpu_s`` is user and system time of
    all ranks an iteration. ``wrong`` counts wrong elements of all ranks; None where the operation
    has no result.
    """

    backend: str
    iterations: int
    median_s: float
    min_s: float
    cpu_s: float
    wrong: int | None

    def cpu_s_per_gib(self, size: int) -> float | None:
        """Return the processor seconds for each GiB of messages of ``size`` bytes."""
        return self.cpu_s / size * _GIB if size else None


class Control:
    """Exchanges small facts between the ranks over the store, which costs the backend nothing."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._store = store
        self._number = 0

    def exchange(self, mine: Any) -> list[Any]:
        """Return every rank's ``mine``, in rank order. Every rank must call it."""
        self._number += 1
        prefix = f"bench/{self._number}/"
        self._store.set(prefix + str(self.rank), json.dumps(mine))
        return [json.loads(self._store.get(prefix + str(r))) for r in range(self.world)]


def _cpu_now() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class _Sampler:
    """Collects this rank's times of one side, round after round."""

    def __init__(self, operation: Operation, side: Side) -> None:
        self.operation, self.side = operation, side
        self.times: list[float] = []
        self.cpu_s = 0.0
        self._on_gpu = operation.case.device.type == "cuda"

    def once(self) -> float:
        """Run the operation; return its seconds, up to the result being in place."""
        begin = time.perf_counter()
        self.operation.run(self.side.group)
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def round(self, iterations: int) -> None:
        """Take samples; a first run that does not count brings the ranks level."""
        self.once()
        before = _cpu_now()
        self.times += [self.once() for _ in range(iterations)]
        self.cpu_s += _cpu_now() - before


def _iterations(samplers: Sequence[_Sampler], plan: Plan, control: Control) -> list[int]:
    """Return how often each side runs; the same on every rank."""
    counts = []
    for sampler in samplers:
        for _ in range(_WARMUP):
            sampler.once()
        estimate = min(sampler.once() for _ in range(_WARMUP))
        slowest = max(control.exchange(estimate))
        fill = int(plan.min_time / max(slowest, 1e-7))
        counts.append(plan.iterations or min(max(fill, _LEAST_ITERATIONS), _MOST_ITERATIONS))
    return counts


def _verify(samplers: Sequence[_Sampler], control: Control) -> list[int]:
    return [
        sum(control.exchange(sampler.operation.wrong(sampler.side.group))) for sampler in samplers
    ]


def measure(case: Case, sides: Sequence[Side], plan: Plan, control: Control) -> list[Timing]:
    """Verify and time ``case`` over every side in turn; every rank must call it.

    Results are checked before and after the timing. Rounds of the sides alternate, so that a
    change of the machine's speed falls on all of them alike.
    """
    operation = Operation(case)
    samplers = [_Sampler(operation, side) for side in sides]
    checked = case.op != "barrier"
    wrong = _verify(samplers, control) if checked else [0] * len(sides)
    operation.clear()
    counts = _iterations(samplers, plan, control)
    rounds = 1 if len(sides) == 1 else min(_ROUNDS, *counts)
    for number in range(rounds):
        turn = list(zip(samplers, counts, strict=True))
        for sampler, count in turn if number % 2 == 0 else reversed(turn):
            sampler.round(count * (number + 1) // rounds - count * number // rounds)
    if checked:
        wrong = [a + b for a, b in zip(wrong, _verify(samplers, control), strict=True)]
    timings = []
    for sampler, errors in zip(samplers, wrong, strict=True):
        every = control.exchange([sampler.times, sampler.cpu_s])
        slowest = [max(times) for times in zip(*[entry[0] for entry in every], strict=True)]
        timings.append(
            Timing(
                backend=sampler.side.name,
                iterations=len(slowest),
                median_s=statistics.median(slowest),
                min_s=min(slowest),
                cpu_s=sum(entry[1] for entry in every) / len(slowest),
                wrong=errors if checked else None,
            )
        )
    return timings
