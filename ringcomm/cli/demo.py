"""``python -m ringcomm demo``: the same training over ringcomm and over a peer, side by side."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ringcomm.cli.backends import BackendError, require_backend
from ringcomm.cli.launch import LaunchError, launch

# Summing in another order changes float32 gradients in the last bits, and a training run makes
# such a difference grow with its length; a lost or doubled gradient shows orders above this.
LOSS_TOLERANCE = 1e-2

# The same arithmetic taking this many times longer in one run is the machine, not the backend.
UNEQUAL_COMPUTE = 1.15


class DemoError(RuntimeError):
    """What keeps the demo from running, in words for the person at the terminal."""


def find_script() -> Path:
    """Return the path of examples/train_gpt.py beside the package.

    Raises:
        DemoError: the package is installed without the source tree.
    """
    script = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
    if not script.is_file():
        raise DemoError(
            f"{script} is not there: the demo is part of the source tree; run it from a clone, "
            "or give the script with --script"
        )
    return script


def largest_difference(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Return the largest difference of two loss curves of the same length; NaN counts as inf.

    Raises:
        DemoError: the curves' lengths differ.
    """
    if len(ours) != len(peer):
        raise DemoError(f"the loss curves have {len(ours)} and {len(peer)} steps")
    differences = [abs(a - b) for a, b in zip(ours, peer, strict=True)]
    return max((d if d == d else float("inf") for d in differences), default=0.0)  # noqa: PLR0124


def verdict(records: Sequence[dict[str, Any]]) -> tuple[bool, str]:
    """Return whether the two runs' losses agree, and the sentence that says so."""
    ours, peer = records
    worst = largest_difference(ours["losses"], peer["losses"])
    names = f"{ours['backend']} and {peer['backend']}"
    steps = len(ours["losses"])
    if worst <= LOSS_TOLERANCE:
        found = "identical" if worst == 0 else f"at most {worst:.2g} apart"
        return True, (
            f"The losses of {names} agree: {found} in {steps} steps (tolerance {LOSS_TOLERANCE:g})."
        )
    return False, (
        f"The losses of {names} DISAGREE: up to {worst:.2g} apart in {steps} steps "
        f"(tolerance {LOSS_TOLERANCE:g})."
    )


def comparison(records: Sequence[dict[str, Any]]) -> Table:
    """Return the table with one column for each run."""
    table = Table()
    table.add_column("")
    for record in records:
        table.add_column(str(record["backend"]), justify="right")
    rows: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
        ("loss, first step", lambda r: f"{r['losses'][0]:.4f}"),
        ("loss, last step", lambda r: f"{r['losses'][-1]:.4f}"),
        ("tokens/s", lambda r: f"{r['tokens_per_s']:.0f}"),
        ("step", lambda r: f"{r['step_ms']:.1f} ms"),
        ("the pass without communication", lambda r: _or_dash(r["compute_ms"], "ms")),
        ("exposed communication", lambda r: _or_dash(r["exposed_ms"], "ms")),
        ("  of the step", lambda r: _or_dash(r["exposed_percent"], "%")),
    )
    for label, text in rows:
        table.add_row(label, *[text(record) for record in records])
    return table


def headline(record: dict[str, Any]) -> str:
    """Return the line that says what was trained, and how much of it goes over the wire."""
    return (
        f"GPT, {record['parameters'] / 1e6:.1f} M parameters, "
        f"{record['gradient_bytes'] / 1e6:.1f} MB of gradients a step, "
        f"{record['world_size']} ranks on {record['device']}"
    )


def caution(records: Sequence[dict[str, Any]]) -> str | None:
    """Return a warning if the machine was not equally fast in both runs, else None."""
    times = [record["compute_ms"] for record in records]
    if None in times or max(times) <= UNEQUAL_COMPUTE * min(times):
        return None
    took = " and ".join(f"{value:.1f} ms" for value in times)
    return (
        f"The machine was busier during one of the runs: the same pass without communication "
        f"took {took}. The speeds do not compare; run it again on an idle machine."
    )


def _or_dash(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.1f} {unit}"


def train(script: Path, backend: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the training script over ``backend`` and return its record."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command = [sys.executable, str(script), "--backend", backend, "--json", str(record)]
        command += ["--steps", str(options.steps), "--device", options.device]
        command += ["--seed", str(options.seed)]
        launch(command, options.nproc, timeout=options.timeout)
        loaded: dict[str, Any] = json.loads(record.read_text())
    return loaded


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command's options."""
    parser = argparse.ArgumentParser(
        prog="python -m ringcomm demo",
        description="Train a small GPT over two backends in turn and compare speed and losses.",
    )
    parser.add_argument("--backend", default="ringcomm", help="default %(default)s")
    parser.add_argument("--against", default="gloo", metavar="PEER", help="default %(default)s")
    parser.add_argument("-n", "--nproc", type=int, default=2, help="ranks, default %(default)s")
    parser.add_argument("--steps", type=int, default=120, help="default %(default)s")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--script", type=Path, help="the training script, if not in the tree")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a run may take")
    options = parser.parse_args(argv)
    if options.nproc < 1:
        parser.error(f"--nproc is {options.nproc}, must be at least 1")
    if options.steps < 3:
        parser.error(f"--steps is {options.steps}, must be at least 3")
    return options


def main(argv: Sequence[str]) -> int:
    """Run the demo; return 0 if both runs worked and their losses agree, else 1."""
    options = parse(argv)
    console = Console()
    names = [options.backend, options.against]
    records = []
    try:
        script = options.script or find_script()
        for name in names:
            require_backend(name)
        for number, name in enumerate(names, 1):
            console.print(f"run {number} of {len(names)}: {options.nproc} ranks over {name}")
            records.append(train(script, name, options))
        agree, sentence = verdict(records)
    except (BackendError, DemoError, LaunchError) as error:
        print(f"ringcomm demo: {error}", file=sys.stderr)
        return 1
    console.print(headline(records[0]), highlight=False)
    console.print(comparison(records))
    if (warning := caution(records)) is not None:
        console.print(warning, highlight=False)
    console.print(sentence, highlight=False)
    return 0 if agree else 1
