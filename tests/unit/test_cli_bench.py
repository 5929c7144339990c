"""What the benchmark verifies, and runs of it over gloo and ringcomm."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

from ringcomm.cli.bench import make_parser, parse
from ringcomm.cli.bench_ops import OPS, Case, Operation, _fill, multiple_of

REDOPS = ["sum", "avg", "prod", "min", "max"]
WITH_RESULT = [op for op in OPS if op != "barrier"]


def operation(op="all_reduce", elements=10_000, *, world=1, redop="sum", dtype="float32", rank=0):
    size = elements * torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    return Operation(Case(op, size, dtype, redop, world, rank, torch.device("cpu")))


def fill_right(made):
    for number, tensor in enumerate(made.outputs):
        _fill(tensor, made._expected(number))


@pytest.mark.parametrize("op", ["all_reduce", "reduce", "all_reduce_coalesced"])
@pytest.mark.parametrize("redop", REDOPS)
def test_reduction_of_one_rank_is_its_own_values(op, redop):
    made = operation(op, redop=redop)
    made.run = lambda group: None
    assert made.wrong(None) == 0


@pytest.mark.parametrize("op", ["all_reduce", "reduce", "all_reduce_coalesced"])
@pytest.mark.parametrize("redop", REDOPS)
def test_a_rank_left_out_is_noticed(op, redop):
    made = operation(op, redop=redop, world=2)
    made.run = lambda group: None
    assert made.wrong(None) > 1000


@pytest.mark.parametrize("op", WITH_RESULT)
def test_an_operation_that_does_nothing_is_noticed(op):
    for rank in range(3):
        made = operation(op, elements=30_000, world=3, rank=rank)
        made.run = lambda group: None
        root_only = op in ("reduce", "gather")
        nothing_to_do = (op == "broadcast" and rank == 0) or (root_only and rank != 0)
        assert made.wrong(None) == 0 if nothing_to_do else made.wrong(None) > 5000


@pytest.mark.parametrize("op", WITH_RESULT)
def test_right_results_stay_unblamed_and_stale_ones_do_not(op):
    made = operation(op, elements=30_000, world=3)
    made.run = lambda group: fill_right(made)
    assert made.wrong(None) == 0
    made.run = lambda group: None  # what the first run left must not count as this one's
    assert made.wrong(None) > 5000 or op == "broadcast"


@pytest.mark.parametrize("op", ["all_gather", "all_to_all", "gather", "all_reduce_coalesced"])
@pytest.mark.parametrize("world", [2, 5])
def test_exchanged_blocks_are_noticed(op, world):
    made = operation(op, elements=40_000, world=world)

    def exchange(group):
        fill_right(made)
        first, second = made.outputs[:2]
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)

    made.run = exchange
    assert made.wrong(None) > 4000


@pytest.mark.parametrize("op", ["reduce_scatter", "scatter"])
def test_another_ranks_block_is_noticed(op):
    made, other = (operation(op, elements=30_000, world=3, rank=rank) for rank in (1, 2))
    made.run = lambda group: _fill(made.outputs[0], other._expected(0))
    assert made.wrong(None) > 5000


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


BLOCKED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


@pytest.mark.parametrize("op", WITH_RESULT)
def test_sizes_are_those_of_nccl_tests(op):
    case = operation(op, 12, world=3).case
    assert case.count == (4 if op in BLOCKED else 12)  # a block's, of 12 over all ranks
    assert multiple_of(op, "float32", 3) == (12 if op in BLOCKED else 4)


def test_coalesced_message_is_in_eight_pieces():
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


def test_sendrecv_alone_is_refused():
    with pytest.raises(ValueError, match="needs at least 2 ranks, there is 1"):
        operation("sendrecv", world=1)


def test_help_explains_every_option_and_its_default():
    parser = make_parser()
    texts = {action.dest: action.help % vars(action) for action in parser._actions}
    del texts["help"]
    assert all(re.fullmatch(r".{10,} \(default: .+\)", text) for text in texts.values()), texts
    assert "ignored under torchrun" in texts["nproc"]
    assert texts["nproc"].endswith("(default: 2)")
    assert "GLOO_SOCKET_IFNAME" in texts["against"]
    assert all(op in texts["op"] for op in OPS)


def run_bench(file, *options):
    command = [sys.executable, "-m", "ringcomm", "bench", "--json", str(file), *options]
    for op in OPS:
        command += ["--op", op]
    environment = {k: v for k, v in os.environ.items() if k != "RANK"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "# Wrong values: 0 OK" in done.stdout
    rows = json.loads(file.read_text())["rows"]
    for row in rows:
        for side in filter(None, (row["ours"], row["peer"])):
            assert side["iterations"] == 6
            assert 0 < side["min_us"] <= side["median_us"]
            assert side["wrong"] == (None if row["op"] == "barrier" else 0)
    return rows


def test_two_backends_side_by_side(tmp_path):
    options = ["--backend", "gloo", "--against", "gloo", "--sizes", "8,40K", "--iters", "6"]
    rows = run_bench(tmp_path / "rows.json", *options)
    sizes = {op: [0] if op == "barrier" else [8, 40960] for op in OPS}
    assert [(row["op"], row["size"]) for row in rows] == [
        (op, size) for op in OPS for size in sizes[op]
    ]
    assert all(row["peer"] is not None for row in rows)


def test_three_ranks_of_ringcomm(tmp_path):
    rows = run_bench(tmp_path / "rows.json", "-n", "3", "--sizes", "100K", "--iters", "6")
    whole = dict.fromkeys(BLOCKED, 102_396)  # a multiple of three elements
    assert {row["op"]: row["size"] for row in rows} == {
        op: 0 if op == "barrier" else whole.get(op, 102_400) for op in OPS
    }
    assert all(row["peer"] is None for row in rows)
