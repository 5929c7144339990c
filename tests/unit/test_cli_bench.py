"""What the benchmark verifies, and one run of it over gloo."""

import json
import os
import subprocess
import sys

import pytest
import torch

from ringcomm.cli.bench import parse
from ringcomm.cli.bench_ops import Case, Operation


def operation(op="all_reduce", elements=10_000, world=1, redop="sum", dtype="float32"):
    size = elements * torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    return Operation(Case(op, size, dtype, redop, world, 0, torch.device("cpu")))


@pytest.mark.parametrize("redop", ["sum", "avg", "prod", "min", "max"])
def test_reduction_of_one_rank_is_its_own_values(redop):
    made = operation(redop=redop)
    made.run = lambda group: None
    assert made.wrong(None) == 0


@pytest.mark.parametrize("redop", ["sum", "avg", "prod", "min", "max"])
def test_a_rank_left_out_is_noticed(redop):
    made = operation(redop=redop, world=2)
    made.run = lambda group: None
    assert made.wrong(None) > 1000


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_one_damaged_element_counts_as_one(dtype):
    made = operation(dtype=dtype)

    def damage(group):
        made.outputs[0][9_999] += 1

    made.run = damage
    assert made.wrong(None) == 1


@pytest.mark.parametrize("elements", [1, 256, 4096])
def test_data_in_the_wrong_place_is_noticed(elements):
    made = operation()

    def shift(group):
        made.outputs[0].copy_(made.outputs[0].roll(elements))

    made.run = shift
    assert made.wrong(None) > 1000


def test_sizes_are_those_of_nccl_tests():
    assert operation("all_gather", 12, world=3).case.count == 4  # of a whole output of 12
    assert operation("all_reduce", 12, world=3).case.count == 12
    pieces = operation("all_reduce_coalesced", 100).inputs
    assert len(pieces) == 8
    assert sum(piece.numel() for piece in pieces) == 100


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-n", "0"], "--nproc is 0, must be at least 1"),
        (["--iters", "0"], "--iters is 0, must be at least 1"),
        (["--redop", "avg", "--dtype", "int32"], "--redop avg needs a floating-point --dtype"),
        (["-b", "4X"], "size '4X' is not a number of bytes"),
        (["-b", "8K", "-e", "1K"], "smallest size, 8192, is above the largest, 1024"),
        (["--op", "scan"], "invalid choice: 'scan'"),
    ],
)
def test_bad_options_are_named(argv, text, capsys):
    with pytest.raises(SystemExit) as error:
        parse(argv)
    assert error.value.code == 2
    assert text in capsys.readouterr().err


def test_two_backends_side_by_side(tmp_path):
    file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "ringcomm", "bench", "--backend", "gloo", "--against", "gloo"]
    command += ["--op", "all_reduce", "--op", "all_gather", "--op", "all_reduce_coalesced"]
    command += ["--op", "broadcast", "--op", "barrier", "--sizes", "8,40K", "--iters", "6"]
    environment = {k: v for k, v in os.environ.items() if k != "RANK"}
    done = subprocess.run(
        [*command, "--json", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "# Wrong values: 0 OK" in done.stdout
    rows = json.loads(file.read_text())["rows"]
    assert [(row["op"], row["size"]) for row in rows] == [
        *(("all_reduce", 8), ("all_reduce", 40960)),
        *(("all_gather", 8), ("all_gather", 40960)),
        *(("all_reduce_coalesced", 8), ("all_reduce_coalesced", 40960)),
        *(("broadcast", 8), ("broadcast", 40960)),
        ("barrier", 0),
    ]
    for row in rows:
        assert row["ours"]["iterations"] == row["peer"]["iterations"] == 6
        assert 0 < row["ours"]["min_us"] <= row["ours"]["median_us"]
        assert row["ours"]["wrong"] == (None if row["op"] == "barrier" else 0)
