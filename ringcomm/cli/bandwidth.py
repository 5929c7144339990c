"""Algorithm and bus bandwidth, by the definitions of nccl-tests.

The algorithm bandwidth is a message's size over its time. The bus bandwidth multiplies it by
what every rank must send at least for each byte of the message, so that it can be compared with
a link's rate whatever the operation and the number of ranks.
"""

from __future__ import annotations


def bus_factor(op: str, world: int) -> float:
    """Return bus bandwidth over algorithm bandwidth for ``op`` on ``world`` ranks.

    Raises:
        ValueError: ``op`` is unknown, or ``world`` is below 1.
    """
    if world < 1:
        raise ValueError(f"world is {world}, must be at least 1")
    if op in ("all_reduce", "all_reduce_coalesced"):
        return 2 * (world - 1) / world
    if op in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (world - 1) / world
    if op in ("broadcast", "reduce", "sendrecv"):
        return 1.0
    if op == "barrier":
        return 0.0
    raise ValueError(f"operation {op!r} has no bandwidth factor")


def bandwidths(op: str, world: int, size: int, seconds: float) -> tuple[float, float]:
    """Return (algbw, busbw) in GB/s (10^9 bytes) of ``size`` bytes in ``seconds``."""
    algbw = size / seconds / 1e9
    return algbw, algbw * bus_factor(op, world)
