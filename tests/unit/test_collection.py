"""That the suite runs all that there is."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    folders = {path.parent.name for path in TESTS.rglob("test_*.py")}
    assert {"dist", "fault", "unit"} <= folders
    passed_over = pytestconfig.getini("norecursedirs")
    assert not [name for name in folders for glob in passed_over if fnmatch(name, glob)]
