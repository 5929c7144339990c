"""The table of algorithms: which sizes take which, as the options now in force choose."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from rich.table import Table

_UNBOUNDED = 2**64 - 1


def algorithm_table(rows: Iterable[tuple[str, int, int, str]]) -> Table:
    """Return the table of algorithms from rows of (collective, first, last size in bytes, name)."""
    table = Table()
    for heading in ("collective", "from (B)", "to (B)", "algorithm"):
        table.add_column(heading, justify="right" if "(B)" in heading else "left")
    for collective, first, last, algorithm in rows:
        upper = "any" if last == _UNBOUNDED else str(last)
        table.add_row(collective, str(first), upper, algorithm)
    return table


def current_algorithms(world: int) -> list[tuple[str, int, int, str]]:
    """Return what a group of `world` ranks chooses, with the environment's options.

    Raises:
        ValueError: an option of the environment is not allowed.
    """
    from ringcomm import _C
    from ringcomm.options import from_environment

    return _C.algorithm_table(world, from_environment(datetime.timedelta(seconds=1)))
