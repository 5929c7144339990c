"""The Makefile's virtual environment: nothing half made stays behind."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# As python3 without Debian's python3-venv: the interpreter is in place, pip is not.
FAILING = """#!/bin/sh
mkdir -p "$3/bin" && ln -sf "$0" "$3/bin/python"
echo "ensurepip is not available" >&2
exit 1
"""


def make_venv(tmp_path, python):
    interpreter = tmp_path / "python3"
    interpreter.write_text(python)
    interpreter.chmod(0o755)
    command = ["make", "-C", str(ROOT), f"PYTHON={interpreter}", f"VENV={tmp_path / 'venv'}"]
    # What the make around this test hands down would win over the Makefile's own variables.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        [*command, "venv"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("attempt", ["first", "second"])
def test_failed_venv_is_named_and_leaves_nothing(tmp_path, attempt):
    if attempt == "second":
        make_venv(tmp_path, FAILING)
    done = make_venv(tmp_path, FAILING)
    assert done.returncode == 2
    assert f"{tmp_path / 'python3'} -m venv {tmp_path / 'venv'}" in done.stdout
    assert "ensurepip is not available" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_failed_venv_keeps_a_folder_that_was_there(tmp_path):
    (tmp_path / "venv").mkdir()
    kept = tmp_path / "venv" / "notes.txt"
    kept.write_text("mine")
    assert make_venv(tmp_path, FAILING).returncode == 2
    assert kept.read_text() == "mine"


def test_half_made_venv_is_made_again(tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to("/bin/true")
    pip = '#!/bin/sh\necho "made anew"\nln -sf /bin/true "$3/bin/pip"\n'
    done = make_venv(tmp_path, pip)
    assert done.returncode == 0, done.stderr
    assert "made anew" in done.stdout
