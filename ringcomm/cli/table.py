"""Rows of measurements as text in nccl-tests' layout, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringcomm.cli.bandwidth import bandwidths
from ringcomm.cli.measure import Timing

# Below this a call's own cost hides what the bytes cost, and s/GiB is a meaningless large number.
_LEAST_FOR_CPU = 4096


@dataclass(frozen=True)
class Row:
    """One operation at one size, over ``ours`` and, where one was measured, a peer."""

    op: str
    size: int
    count: int
    dtype: str
    redop: str
    world: int
    ours: Timing
    peer: Timing | None = None

    @property
    def ratio(self) -> float | None:
        """The peer's median time over ours: above 1 ours is faster."""
        return None if self.peer is None else self.peer.median_s / self.ours.median_s

    def bandwidths(self, timing: Timing) -> tuple[float, float]:
        """Return (algbw, busbw) in GB/s of one of the row's timings."""
        return bandwidths(self.op, self.world, self.size, timing.median_s)

    def record(self) -> dict[str, Any]:
        """Return the row for JSON: times in us, bandwidths in GB/s, processor time in s."""
        return {
            "op": self.op,
            "size": self.size,
            "count": self.count,
            "type": self.dtype,
            "redop": self.redop,
            "world": self.world,
            "ours": self._side(self.ours),
            "peer": None if self.peer is None else self._side(self.peer),
            "ratio": self.ratio,
        }

    def _side(self, timing: Timing) -> dict[str, Any]:
        algbw, busbw = self.bandwidths(timing)
        return {
            "backend": timing.backend,
            "iterations": timing.iterations,
            "median_us": timing.median_s * 1e6,
            "min_us": timing.min_s * 1e6,
            "algbw": algbw,
            "busbw": busbw,
            "cpu_s_per_op": timing.cpu_s,
            "cpu_s_per_GiB": timing.cpu_s_per_gib(self.size),
            "wrong": timing.wrong,
        }


def _cpu(timing: Timing, size: int) -> str:
    value = timing.cpu_s_per_gib(size)
    return "-" if value is None or size < _LEAST_FOR_CPU else f"{value:.3f}"


def _wrong(timing: Timing) -> str:
    return "N/A" if timing.wrong is None else str(timing.wrong)


_OWN = "{:>12} {:>12} {:>9} {:>6} {:>11} {:>11} {:>8} {:>8} {:>8} {:>7}"
_PEER = " {:>11} {:>8} {:>7} {:>7}"


def header(op: str, peer: str | None) -> str:
    """Return the lines above the rows of ``op``; ``peer`` is the second backend's name."""
    names = ("size", "count", "type", "redop", "time", "min", "algbw", "busbw", "cpu", "#wrong")
    units = ("(B)", "(elements)", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)", "(s/GiB)", "")
    first, second = _OWN.format(*names), _OWN.format(*units)
    if peer is not None:
        first += _PEER.format(peer[:11], "cpu", "#wrong", "ratio")
        second += _PEER.format("(us)", "(s/GiB)", "", "")
    # The lines start with '#', as comments for whatever reads the rows.
    return "\n".join((f"# {op}", "#" + first[1:].rstrip(), "#" + second[1:].rstrip()))


def line(row: Row) -> str:
    """Return one row as a line that stands under ``header``."""
    algbw, busbw = row.bandwidths(row.ours)
    text = _OWN.format(
        row.size,
        row.count,
        row.dtype,
        row.redop,
        f"{row.ours.median_s * 1e6:.1f}",
        f"{row.ours.min_s * 1e6:.1f}",
        f"{algbw:.3f}",
        f"{busbw:.3f}",
        _cpu(row.ours, row.size),
        _wrong(row.ours),
    )
    if row.peer is not None:
        text += _PEER.format(
            f"{row.peer.median_s * 1e6:.1f}",
            _cpu(row.peer, row.size),
            _wrong(row.peer),
            f"{row.ratio:.2f}",
        )
    return text


def total_wrong(rows: Sequence[Row]) -> int:
    """Return the wrong elements of all rows, both backends, all ranks."""
    timings = [timing for row in rows for timing in (row.ours, row.peer) if timing is not None]
    return sum(timing.wrong or 0 for timing in timings)


def footer(rows: Sequence[Row]) -> str:
    """Return the lines below the last row: wrong values, and the mean bus bandwidth."""
    wrong = total_wrong(rows)
    buses = [row.bandwidths(row.ours)[1] for row in rows if row.size]
    lines = [f"# Wrong values: {wrong} {'OK' if wrong == 0 else 'FAILED'}"]
    if buses:
        lines.append(f"# Avg bus bandwidth: {sum(buses) / len(buses):.3f} GB/s")
    return "\n".join(lines)
