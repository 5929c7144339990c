"""Message sizes as people write them: 4, 64K, 1.5M, 1GiB."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` means; K, M and G are powers of 1024, as in nccl-tests.

    Raises:
        argparse.ArgumentTypeError: ``text`` is no size, or not a whole number of bytes.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"size {text!r} is not a number of bytes such as 4, 64K, 1.5M or 1G"
        )
    value = float(match[1]) * _UNITS[match[2].upper()]
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(
            f"size {text!r} is {value:g} bytes, must be a whole number of at least 1"
        )
    return int(value)


def parse_sizes(text: str) -> list[int]:
    """Return the sizes of a list such as ``4,64K,1M``, in the order given."""
    return [parse_size(part) for part in text.split(",")]


def size_range(least: int, most: int, factor: int) -> list[int]:
    """Return ``least``, ``least * factor``, and so on, up to and not above ``most``.

    Raises:
        ValueError: ``factor`` is below 2, or ``least`` is above ``most``.
    """
    if factor < 2:
        raise ValueError(f"the factor between sizes is {factor}, must be at least 2")
    if least > most:
        raise ValueError(f"the smallest size, {least}, is above the largest, {most}")
    sizes = [least]
    while sizes[-1] * factor <= most:
        sizes.append(sizes[-1] * factor)
    return sizes


def format_size(size: int) -> str:
    """Return ``size`` in the largest unit that leaves it a whole number: 65536 is ``64K``."""
    for unit, value in reversed(_UNITS.items()):
        if size and size % value == 0:
            return f"{size // value}{unit}"
    return str(size)


def align_sizes(sizes: Sequence[int], multiple: int) -> list[int]:
    """Round every size down to a multiple, at least one of it; drop what then repeats."""
    return list(dict.fromkeys(max(multiple, size // multiple * multiple) for size in sizes))
