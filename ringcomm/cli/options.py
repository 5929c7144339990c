"""``python -m ringcomm options``: every option of the backend, and how to set it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

_SCOPES = {"P": "process", "L": "rank", "G": "group"}


def option_table(rows: Iterable[tuple[str, str, str, str]]) -> Table:
    """Return the table of options from rows of (name, scope's letter, default, explanation)."""
    table = Table()
    for heading in ("option", "of the", "default", "what it does"):
        table.add_column(heading)
    for name, scope, default, text in rows:
        table.add_row(name, _SCOPES.get(scope, scope), default, text)
    return table


def main(argv: Sequence[str]) -> int:
    """Print the options; return 0."""
    parser = argparse.ArgumentParser(
        prog="python -m ringcomm options",
        description="Explain the options, which ringcomm.Options(name=value) and environment "
        "variables such as RINGCOMM_LANES=2 set. An option of the process is decided by its "
        "first group; of one that is the group's, rank 0's value holds for all ranks.",
    )
    parser.parse_args(argv)
    from ringcomm import _C

    Console(highlight=False).print(option_table(_C.option_table()))
    return 0
