"""What a reduction has to give, computed in numpy apart from the code under test, and how near."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.distributed as dist

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
DTYPES = (*FLOATS, *INTEGERS, "bool")
BITWISE = ("BAND", "BOR", "BXOR")
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *BITWISE, "PREMUL_SUM")
FACTOR = 0.3

# Half the distance from 1 to the next number: the relative error of one rounding.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def defined(dtype: str, op: str) -> bool:
    """Whether torch defines the reduction: as NCCL and Gloo together have it."""
    if dtype in FLOATS:
        return op not in BITWISE
    if dtype == "bool":
        return op not in ("AVG", "PREMUL_SUM")
    return op != "PREMUL_SUM"


def reduce_op(op: str) -> dist.ReduceOp:
    if op == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(FACTOR)
    return getattr(dist.ReduceOp, op)


def inputs(dtype: str, op: str, world: int, count: int, seed: int = 0) -> list[torch.Tensor]:
    """Each rank's part, the same wherever it is computed; products stay in range."""
    random = np.random.default_rng([seed, world, count])
    parts = []
    for _ in range(world):
        if dtype == "bool":
            part = torch.from_numpy(random.random(count) < 0.5)
        elif dtype in FLOATS:
            spread = random.uniform(0.5, 1.5, count) if op == "PRODUCT" else None
            values = random.normal(0, 10, count) if spread is None else spread
            part = torch.from_numpy(values).to(getattr(torch, dtype))
        else:
            info = torch.iinfo(getattr(torch, dtype))
            values = random.integers(info.min, info.max, count, dtype=np.int64, endpoint=True)
            part = torch.from_numpy(values).to(getattr(torch, dtype))
        parts.append(part)
    return parts


def truncated_quotient(values: np.ndarray, divisor: int) -> np.ndarray:
    floor, rest = np.divmod(values, divisor)
    return floor + ((rest != 0) & (values < 0)).astype(values.dtype)


def integer_reference(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    """Of integers and bools: exact, with sums and products that wrap."""
    stack = np.stack([part.numpy() for part in parts])
    dtype = stack.dtype
    if dtype == np.bool_:
        any_of = {"SUM": np.any, "MAX": np.any, "BOR": np.any}
        both = {"PRODUCT": np.all, "MIN": np.all, "BAND": np.all}
        if op == "BXOR":
            return torch.from_numpy(np.bitwise_xor.reduce(stack, axis=0))
        return torch.from_numpy({**any_of, **both}[op](stack, axis=0))
    with np.errstate(over="ignore"):
        if op in ("SUM", "AVG"):
            total = np.add.reduce(stack, axis=0, dtype=dtype)
            return torch.from_numpy(truncated_quotient(total, len(parts)) if op == "AVG" else total)
        if op == "PRODUCT":
            return torch.from_numpy(np.multiply.reduce(stack, axis=0, dtype=dtype))
    bitwise = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
    function = {"MIN": np.minimum, "MAX": np.maximum, **bitwise}[op]
    return torch.from_numpy(function.reduce(stack, axis=0))


def float_reference(parts: list[torch.Tensor], op: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Of floats: in float64, with the bound of the error of each element.

    Adding N terms in any order rounds N - 1 times, each time by at most `u` of a partial sum, which
    is at most the sum of the absolute values; scaling before or after rounds once or twice more.
    """
    stack = torch.stack([part.double() for part in parts])
    if op in ("MIN", "MAX"):
        exact = stack.amin(0) if op == "MIN" else stack.amax(0)
        return exact, torch.zeros_like(exact)
    u = ROUNDING[str(parts[0].dtype).removeprefix("torch.")]
    world = len(parts)
    if op == "PRODUCT":
        exact = stack.prod(0)
        return exact, exact.abs() * (world * u * 1.1)
    scale = {"SUM": 1.0, "AVG": 1 / world, "PREMUL_SUM": FACTOR}[op]
    roundings = world - 1 if op == "SUM" else world + 1
    exact = stack.sum(0) * scale
    smallest = torch.finfo(parts[0].dtype).smallest_normal
    slack = 0.0 if op == "SUM" else world * smallest
    return exact, stack.abs().sum(0) * abs(scale) * (roundings * u * 1.1) + slack


def assert_reduced(result: torch.Tensor, parts: list[torch.Tensor], op: str) -> None:
    assert result.dtype == parts[0].dtype
    assert result.numel() == parts[0].numel()
    if not result.dtype.is_floating_point:
        expected = integer_reference(parts, op)
        wrong = (result.flatten() != expected).nonzero().flatten()[:5]
        assert not len(wrong), f"{op}: at {wrong} {result.flatten()[wrong]}, not {expected[wrong]}"
        return
    expected, bound = float_reference(parts, op)
    error = (result.flatten().double() - expected).abs()
    excess = (error - bound).max().item() if error.numel() else -math.inf
    # float64 is compared with a reference that has roundings of its own.
    allowed = bound.max().item() if result.dtype == torch.float64 and error.numel() else 0.0
    assert excess <= allowed, f"{op}: error exceeds its bound by {excess}"
