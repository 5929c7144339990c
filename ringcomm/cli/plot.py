"""Bandwidth and latency over message size, as a picture."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringcomm.cli.sizes import format_size
from ringcomm.cli.table import Row


class PlotError(RuntimeError):
    """The picture cannot be drawn; the text says what is missing."""


def load_pyplot() -> Any:
    """Import matplotlib, which only plotting needs, for drawing into files.

    Raises:
        PlotError: matplotlib is not installed.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise PlotError(f"--plot needs matplotlib ({error}): pip install ringcomm[plot]") from error


def curves(rows: Sequence[Row]) -> dict[str, list[tuple[int, float, float]]]:
    """Return, for each line of the plot, its points (size in B, busbw in GB/s, time in us)."""
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        for side, timing in (("", row.ours), (" (peer)", row.peer)):
            if timing is not None and row.size:
                point = (row.size, row.bandwidths(timing)[1], timing.median_s * 1e6)
                lines.setdefault(f"{row.op} {timing.backend}{side}", []).append(point)
    return {label: sorted(points) for label, points in lines.items()}


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw bus bandwidth and time over size into ``path`` (its ending picks the format).

    Raises:
        PlotError: matplotlib is missing, or no row has a size.
    """
    pyplot = load_pyplot()
    lines = curves(rows)
    if not lines:
        raise PlotError("--plot needs an operation with a message size, barrier has none")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    for label, points in lines.items():
        sizes, buses, times = zip(*points, strict=True)
        left.plot(sizes, buses, marker="o", label=label)
        right.plot(sizes, times, marker="o", label=label)
    ticks = sorted({size for points in lines.values() for size, _, _ in points})
    for axes, title, unit in ((left, "Bus bandwidth", "GB/s"), (right, "Time", "us")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [format_size(tick) for tick in ticks], rotation=60)
        axes.minorticks_off()
        axes.set(xlabel="message size", ylabel=unit, title=f"{title}, {rows[0].world} ranks")
        axes.grid(alpha=0.3)
        axes.legend()
    right.set_yscale("log")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
