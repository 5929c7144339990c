import io
import itertools

import pytest
from rich.console import Console

from ringcomm.cli.algorithms import algorithm_table, current_algorithms


def test_sizes_rise_without_a_gap_and_end_unbounded() -> None:
    rows = [row for row in current_algorithms(4) if row[0] == "all_reduce"]
    assert [row[3] for row in rows] == ["direct", "scatter-gather", "ring"]
    assert rows[0][1] == 0
    assert rows[-1][2] == 2**64 - 1
    assert all(low[2] + 1 == high[1] for low, high in itertools.pairwise(rows))


def test_the_environment_forces_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_ALGORITHMS", "all_reduce=ring")
    rows = [row for row in current_algorithms(4) if row[0] == "all_reduce"]
    assert [row[1:] for row in rows] == [(0, 2**64 - 1, "ring")]


def test_a_wrong_algorithm_is_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_ALGORITHMS", "all_reduce=rung")
    with pytest.raises(ValueError, match=r"rung.*ring"):
        current_algorithms(4)


def test_the_table_shows_every_row() -> None:
    out = io.StringIO()
    table = algorithm_table([("broadcast", 0, 10, "tree"), ("broadcast", 11, 2**64 - 1, "chain")])
    Console(file=out, width=100).print(table)
    assert "tree" in out.getvalue()
    assert "any" in out.getvalue()
