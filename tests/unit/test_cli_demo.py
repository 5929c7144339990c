"""The demo's comparison of two runs, and the commands' ways of saying what is missing."""

import importlib.util
import io

import pytest
from rich.console import Console

from ringcomm.cli import demo
from ringcomm.cli.backends import BackendError, require_backend


def record(backend, losses, compute_ms=80.0):
    return {
        "backend": backend,
        "world_size": 2,
        "device": "cpu",
        "parameters": 3_310_000,
        "gradient_bytes": 13_240_000,
        "losses": losses,
        "tokens_per_s": 5000.0,
        "step_ms": 100.0,
        "compute_ms": compute_ms,
        "exposed_ms": 12.34,
        "exposed_percent": 12.34,
    }


def test_equal_losses_agree():
    agree, sentence = demo.verdict([record("a", [3.0, 2.0]), record("b", [3.0, 2.0])])
    assert agree
    assert sentence == "The losses of a and b agree: identical in 2 steps (tolerance 0.01)."


def test_difference_is_stated_either_way():
    agree, sentence = demo.verdict([record("a", [3.0, 2.0]), record("b", [3.0, 2.005])])
    assert agree
    assert "at most 0.005 apart" in sentence
    agree, sentence = demo.verdict([record("a", [3.0, 2.0]), record("b", [3.0, 2.5])])
    assert not agree
    assert "DISAGREE: up to 0.5 apart" in sentence


def test_nan_disagrees():
    assert not demo.verdict([record("a", [3.0, 2.0]), record("b", [3.0, float("nan")])])[0]
    nan = record("a", [float("nan")])
    assert not demo.verdict([nan, nan])[0]


def test_curves_of_other_lengths_are_an_error():
    with pytest.raises(demo.DemoError, match="1 and 2 steps"):
        demo.largest_difference([1.0], [1.0, 2.0])


def test_a_busier_machine_is_told():
    quiet, busy = record("a", [1.0], 80.0), record("b", [1.0], 160.0)
    assert demo.caution([quiet, quiet]) is None
    assert "80.0 ms and 160.0 ms" in demo.caution([quiet, busy])
    assert demo.caution([quiet, record("b", [1.0], None)]) is None


def test_comparison_has_both_columns():
    out = Console(file=io.StringIO(), width=100)
    out.print(demo.comparison([record("one", [3.0, 2.0]), record("two", [3.0, 1.5])]))
    text = out.file.getvalue()
    for part in ("one", "two", "3.0000", "1.5000", "12.3 ms", "12.3 %", "100.0 ms"):
        assert part in text


def test_missing_torch_is_told(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match="pip install torch"):
        require_backend("gloo")


def test_missing_backend_is_told(capsys):
    assert demo.main(["--backend", "no_such_backend"]) == 1
    error = capsys.readouterr().err
    assert "torch has no backend 'no_such_backend'" in error
    assert "No module named 'no_such_backend'" in error


def test_module_that_registers_nothing_is_told():
    with pytest.raises(BackendError, match="importing 'colorsys' did not register a backend"):
        require_backend("colorsys")


def test_failing_run_fails_the_demo(tmp_path, capfd):
    script = tmp_path / "broken.py"
    script.write_text("import sys; sys.exit('out of paper')")
    assert demo.main(["--backend", "gloo", "--script", str(script)]) == 1
    error = capfd.readouterr().err
    assert "rank 1 exited with 1" in error
    assert "out of paper" in error
