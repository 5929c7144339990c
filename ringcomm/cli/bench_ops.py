"""The collectives that ``bench`` measures: their tensors, their call, and what must come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

_REDUCING = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter")
# Their messages consist of one block for each rank.
_BLOCKED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}

_ROOT = 0
_COALESCED = 8
# The pattern's length is prime: data shifted by a slice, a block or a page never matches it.
_PERIOD = 4093

Group = dist.ProcessGroup | None


@dataclass(frozen=True)
class Case:
    """One row of the table: which operation on how much of what.

    ``size`` is nccl-tests' message size in bytes: all blocks together where every rank has a
    block of its own (all_gather's output, reduce_scatter's input). ``count`` is then one block's
    elements, else the message's.
    """

    op: str
    size: int
    dtype: str
    redop: str
    world: int
    rank: int
    device: torch.device

    @property
    def count(self) -> int:
        """Elements of the message, or of one rank's block of it."""
        if self.op == "barrier":
            return 0
        elements = self.size // element_size(self.dtype)
        return elements // self.world if self.op in _BLOCKED else elements

    @property
    def reduces(self) -> bool:
        """Whether the reduce operation matters."""
        return self.op in _REDUCING


def element_size(dtype: str) -> int:
    """Return the bytes of one element of the type that ``--dtype`` calls ``dtype``."""
    return DTYPES[dtype].itemsize


def multiple_of(op: str, dtype: str, world: int) -> int:
    """Return what a message size of ``op`` must be a multiple of, in bytes."""
    return element_size(dtype) * (world if op in _BLOCKED else 1)


def _tile(case: Case, rank: int, block: int) -> Tensor:
    """Return one period of what ``rank`` has in its block of that number.

    Random, so that no two blocks are alike; what is reduced is small enough to add exactly, the
    rest fills the range that every type holds.
    """
    least, end = (0, 125) if not case.reduces else (1, 3) if case.redop == "prod" else (0, 5)
    generator = torch.Generator().manual_seed(rank * max(case.world, _COALESCED) + block)
    return torch.randint(least, end, (_PERIOD,), generator=generator).to(DTYPES[case.dtype])


def _reduced_tile(case: Case, block: int) -> Tensor:
    """Return one period of the reduction of every rank's block of that number."""
    tiles = torch.stack([_tile(case, rank, block) for rank in range(case.world)])
    if case.redop == "min":
        return tiles.amin(0)
    if case.redop == "max":
        return tiles.amax(0)
    if case.redop == "prod":
        return tiles.prod(0, dtype=tiles.dtype)
    if case.redop == "avg":
        return tiles.double().mean(0).to(tiles.dtype)
    return tiles.sum(0, dtype=tiles.dtype)


def _fill(tensor: Tensor, tile: Tensor) -> None:
    tile = tile.to(tensor.device)
    whole = tensor.numel() // _PERIOD * _PERIOD
    tensor[:whole].view(-1, _PERIOD).copy_(tile.expand(whole // _PERIOD, _PERIOD))
    tensor[whole:].copy_(tile[: tensor.numel() - whole])


def _count_wrong(tensor: Tensor, tile: Tensor, exact: bool) -> int:
    """Return how many elements differ from the repeated tile."""
    tile = tile.to(tensor.device)
    whole = tensor.numel() // _PERIOD * _PERIOD
    wrong = 0
    for part, want in (
        (tensor[:whole].view(-1, _PERIOD), tile),
        (tensor[whole:], tile[: tensor.numel() - whole]),
    ):
        if exact:
            right = part == want
        else:
            right = torch.isclose(part, want, rtol=4 * torch.finfo(part.dtype).eps, atol=0)
        wrong += part.numel() - int(right.sum())
    return wrong


@dataclass(frozen=True)
class _Made:
    """An operation's blocks on this rank.

    ``expected`` gives one period of what must be in the output of that number. Outputs may be
    the inputs; a rank that an operation leaves without a result has none.
    """

    inputs: list[Tensor]
    outputs: list[Tensor]
    run: Callable[[Group], object]
    expected: Callable[[int], Tensor]


def _zeros(case: Case, blocks: int = 1) -> Tensor:
    return torch.zeros(case.count * blocks, dtype=DTYPES[case.dtype], device=case.device)


def _all_reduce(case: Case) -> _Made:
    made, redop = _zeros(case), REDOPS[case.redop]
    return _Made(
        [made],
        [made],
        lambda group: dist.all_reduce(made, redop, group=group),
        lambda number: _reduced_tile(case, number),
    )


def _all_reduce_coalesced(case: Case) -> _Made:
    several, redop = list(_zeros(case).chunk(_COALESCED)), REDOPS[case.redop]
    return _Made(
        several,
        several,
        lambda group: dist.all_reduce_coalesced(several, redop, group=group),
        lambda number: _reduced_tile(case, number),
    )


def _reduce(case: Case) -> _Made:
    made, redop = _zeros(case), REDOPS[case.redop]
    return _Made(
        [made],
        [made] if case.rank == _ROOT else [],
        lambda group: dist.reduce(made, _ROOT, redop, group=group),
        lambda number: _reduced_tile(case, number),
    )


def _broadcast(case: Case) -> _Made:
    made = _zeros(case)
    return _Made(
        [made],
        [made],
        lambda group: dist.broadcast(made, _ROOT, group=group),
        lambda number: _tile(case, _ROOT, number),
    )


def _all_gather(case: Case) -> _Made:
    made, gathered = _zeros(case), _zeros(case, case.world)
    # torch 2.13 renamed the function and warns at every call of the older name.
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return _Made(
        [made],
        list(gathered.chunk(case.world)),
        lambda group: call(gathered, made, group=group),
        lambda number: _tile(case, number, 0),
    )


def _reduce_scatter(case: Case) -> _Made:
    whole, received, redop = _zeros(case, case.world), _zeros(case), REDOPS[case.redop]
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return _Made(
        list(whole.chunk(case.world)),
        [received],
        lambda group: call(received, whole, redop, group=group),
        lambda _: _reduced_tile(case, case.rank),
    )


def _all_to_all(case: Case) -> _Made:
    whole, received = _zeros(case, case.world), _zeros(case, case.world)
    return _Made(
        list(whole.chunk(case.world)),
        list(received.chunk(case.world)),
        lambda group: dist.all_to_all_single(received, whole, group=group),
        lambda number: _tile(case, number, case.rank),
    )


def _gather(case: Case) -> _Made:
    made = _zeros(case)
    blocks = list(_zeros(case, case.world).chunk(case.world)) if case.rank == _ROOT else []
    return _Made(
        [made],
        blocks,
        lambda group: dist.gather(made, blocks or None, _ROOT, group=group),
        lambda number: _tile(case, number, 0),
    )


def _scatter(case: Case) -> _Made:
    received = _zeros(case)
    blocks = list(_zeros(case, case.world).chunk(case.world)) if case.rank == _ROOT else []
    return _Made(
        blocks,
        [received],
        lambda group: dist.scatter(received, blocks or None, _ROOT, group=group),
        lambda _: _tile(case, _ROOT, case.rank),
    )


def _sendrecv(case: Case) -> _Made:
    """Every rank sends to the next one and receives from the one before it."""
    if case.world < 2:
        raise ValueError(f"needs at least 2 ranks, there is {case.world}")
    made, received = _zeros(case), _zeros(case)
    after, before = (case.rank + 1) % case.world, (case.rank - 1) % case.world

    def run(group: Group) -> None:
        send = dist.P2POp(dist.isend, made, after, group)
        receive = dist.P2POp(dist.irecv, received, before, group)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()

    return _Made([made], [received], run, lambda _: _tile(case, before, 0))


def _barrier(case: Case) -> _Made:
    return _Made(
        [],
        [],
        lambda group: dist.barrier(group=group),
        lambda number: _tile(case, number, 0),
    )


_MAKERS: dict[str, Callable[[Case], _Made]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "sendrecv": _sendrecv,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "barrier": _barrier,
}
OPS = tuple(_MAKERS)


class Operation:
    """A case's tensors, and how to call the collective on them.

    ``run`` takes a process group and returns when the result is in the tensors.

    Raises:
        ValueError: the operation needs more ranks than there are.
    """

    def __init__(self, case: Case) -> None:
        made = _MAKERS[case.op](case)
        self.case = case
        self.inputs, self.outputs, self._expected = made.inputs, made.outputs, made.expected
        self.run: Callable[[Group], object] = made.run

    def wrong(self, group: Group) -> int:
        """Run once on known values; return how many of this rank's output elements are wrong."""
        self.clear()
        for number, tensor in enumerate(self.inputs):
            _fill(tensor, _tile(self.case, self.case.rank, number))
        self.run(group)
        exact = not (self.case.reduces and self.case.redop == "avg")
        return sum(
            _count_wrong(tensor, self._expected(number), exact)
            for number, tensor in enumerate(self.outputs)
        )

    def clear(self) -> None:
        """Set the tensors to zero, so that repeated sums stay zero."""
        for tensor in (*self.inputs, *self.outputs):
            tensor.zero_()
