"""The collectives that ``bench`` measures: their tensors, their call, and what must come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

OPS = ("all_reduce", "broadcast", "all_gather", "all_reduce_coalesced", "barrier")
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

# The pattern's length is prime: data shifted by a slice, a block or a page never matches it.
_PERIOD = 4093
_COALESCED = 8


@dataclass(frozen=True)
class Case:
    """One row of the table: which operation on how much of what.

    ``size`` is nccl-tests' message size in bytes (the whole output for all_gather), ``count``
    its elements on one rank's side (the input of all_gather).
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
        """Elements that a rank contributes."""
        if self.op == "barrier":
            return 0
        elements = self.size // element_size(self.dtype)
        return elements // self.world if self.op == "all_gather" else elements

    @property
    def reduces(self) -> bool:
        """Whether the reduce operation matters."""
        return self.op in ("all_reduce", "all_reduce_coalesced")


def element_size(dtype: str) -> int:
    """Return the bytes of one element of the type that ``--dtype`` calls ``dtype``."""
    return DTYPES[dtype].itemsize


def multiple_of(op: str, dtype: str, world: int) -> int:
    """Return what a message size of ``op`` must be a multiple of, in bytes."""
    return element_size(dtype) * (world if op == "all_gather" else 1)


def _tile(rank: int, case: Case) -> Tensor:
    """Return one period of the values that ``rank`` contributes, small enough to add exactly."""
    index = torch.arange(_PERIOD)
    values = (index + rank) % 2 + 1 if case.redop == "prod" else (3 * index + rank) % 5
    return values.to(DTYPES[case.dtype])


def _expected_tile(case: Case) -> Tensor:
    """Return one period of the reduction of every rank's values."""
    tiles = torch.stack([_tile(rank, case) for rank in range(case.world)])
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


@dataclass
class Operation:
    """A case's tensors, and how to call the collective on them.

    ``run`` takes a process group and returns when the result is in the tensors.
    """

    case: Case
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    run: Callable[[dist.ProcessGroup | None], None] = field(init=False)

    def __post_init__(self) -> None:
        case = self.case
        if case.op == "barrier":
            self.run = lambda group: dist.barrier(group=group)
            return
        dtype = DTYPES[case.dtype]
        made = torch.zeros(case.count, dtype=dtype, device=case.device)
        self.inputs = [made]
        if case.op == "all_gather":
            gathered = torch.zeros(case.count * case.world, dtype=dtype, device=case.device)
            self.outputs = list(gathered.chunk(case.world))
            # torch 2.13 renamed the function and warns at every call of the older name.
            name = "all_gather_single"
            gather = getattr(dist, name, None) or dist.all_gather_into_tensor
            self.run = lambda group: gather(gathered, made, group=group)
            return
        self.outputs = self.inputs
        if case.op == "broadcast":
            self.run = lambda group: dist.broadcast(made, 0, group=group)
        elif case.op == "all_reduce":
            redop = REDOPS[case.redop]
            self.run = lambda group: dist.all_reduce(made, redop, group=group)
        else:
            several = list(made.chunk(_COALESCED))
            self.inputs = self.outputs = several
            redop = REDOPS[case.redop]
            self.run = lambda group: dist.all_reduce_coalesced(several, redop, group=group)

    def wrong(self, group: dist.ProcessGroup | None) -> int:
        """Run once on known values; return how many of this rank's output elements are wrong."""
        case = self.case
        for tensor in self.inputs:
            _fill(tensor, _tile(case.rank, case))
        for tensor in self.outputs:
            if case.op == "all_gather":
                tensor.zero_()
        self.run(group)
        exact = not (case.reduces and case.redop == "avg")
        wrong = 0
        for number, tensor in enumerate(self.outputs):
            if case.op == "all_gather":
                tile = _tile(number, case)
            elif case.op == "broadcast":
                tile = _tile(0, case)
            else:
                tile = _expected_tile(case)
            wrong += _count_wrong(tensor, tile, exact)
        return wrong

    def clear(self) -> None:
        """Set the tensors to zero, so that repeated sums stay zero."""
        for tensor in (*self.inputs, *self.outputs):
            tensor.zero_()
