"""The rank's side of the pool: a process that runs one case after another.

Test functions see `place()`, and a default process group where their `ranks` mark asks for one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from ringcomm.testing.ranks import die_with_parent, rank_environment

LIMIT = timedelta(seconds=15)


@dataclass(frozen=True)
class Case:
    """One function for one rank, and the group that it expects to find."""

    module: str
    function: str
    arguments: dict[str, Any]
    rank: int
    world: int
    backend: str | None
    epoch: int


@dataclass(frozen=True)
class Answer:
    """What a rank says of a case: None or its traceback, its result, and what has to agree."""

    error: str | None
    result: Any = None
    agreed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where the running case is. `store` is the case's own, shared by its ranks."""

    rank: int
    world: int
    store: dist.Store


_place: Place | None = None
_agreed: list[str] = []


def place() -> Place:
    assert _place is not None, "only inside a case"
    return _place


def agree(value: Any) -> None:
    """The test fails unless this has the same bits on all ranks: a tensor, or anything by repr."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().flatten()
        raw = flat.view(torch.uint8).numpy().tobytes() if value.numel() else b""
        text = f"{value.dtype} {list(value.shape)} {hashlib.sha256(raw).hexdigest()}"
    else:
        text = repr(value)
    _agreed.append(text)


def start_group(prefix: str = "", **arguments: Any) -> None:
    """Makes the default process group of this case's ranks; `arguments` go to torch."""
    arguments.setdefault("backend", "ringcomm")
    arguments.setdefault("timeout", LIMIT)
    here = place()
    dist.init_process_group(
        store=dist.PrefixStore(f"{prefix}/", here.store),
        rank=here.rank,
        world_size=here.world,
        **arguments,
    )


@contextlib.contextmanager
def group(prefix: str = "", **arguments: Any) -> Iterator[None]:
    """start_group(), and destroys it in the end."""
    start_group(prefix, **arguments)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def forget_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    # A failed init_process_group counts here and maybe not on other ranks: names would differ.
    dist.distributed_c10d._world.group_count = 0


def run(case: Case, store: dist.Store, current: tuple[int, str | None, int] | None) -> Answer:
    global _place
    _agreed.clear()
    wanted = (case.world, case.backend, case.epoch)
    try:
        _place = Place(case.rank, case.world, dist.PrefixStore(f"case{case.epoch}/", store))
        if current != wanted or not dist.is_initialized():
            forget_group()
            os.environ.update(WORLD_SIZE=str(case.world), LOCAL_WORLD_SIZE=str(case.world))
            if case.backend is not None:
                start_group("default", backend=case.backend)
        torch.manual_seed(1000 + case.rank)
        function = getattr(importlib.import_module(case.module), case.function).on_rank
        result = function(**case.arguments)
        if case.backend is None and dist.is_initialized():
            raise AssertionError("the case left a process group behind")
        return Answer(None, result, list(_agreed))
    except BaseException as error:
        report = traceback.TracebackException.from_exception(error, capture_locals=True)
        del report.stack[0]  # this function
        return Answer("".join(report.format()))


def serve(pipe: Connection, rank: int, port: int) -> None:
    """The process's main function: runs cases until the pipe ends. None: leave the group."""
    die_with_parent()
    os.environ.update(rank_environment(rank, rank + 1, port))
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, timeout=LIMIT)
    current: tuple[int, str | None, int] | None = None
    with contextlib.suppress(EOFError):
        while True:
            case: Case | None = pipe.recv()
            if case is None:
                forget_group()
                continue
            answer = run(case, store, current)
            current = (case.world, case.backend, case.epoch)
            pipe.send(answer)
