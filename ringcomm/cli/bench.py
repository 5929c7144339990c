"""``python -m ringcomm bench``: a table of collectives as nccl-tests prints it."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringcomm.cli.backends import BackendError, require_backend, require_torch
from ringcomm.cli.launch import launch, tie_to_launcher
from ringcomm.cli.sizes import align_sizes, parse_size, parse_sizes, size_range

if TYPE_CHECKING:
    import torch

    from ringcomm.cli.measure import Control, Plan, Side
    from ringcomm.cli.table import Row

_OP_TIMEOUT = datetime.timedelta(seconds=300)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command's options; ``sizes`` becomes the list of sizes asked for."""
    from ringcomm.cli.bench_ops import DTYPES, OPS, REDOPS

    parser = argparse.ArgumentParser(
        prog="python -m ringcomm bench",
        description="Measure collectives. Starts its own ranks on this machine, or runs as one "
        "of torchrun's where RANK is set. The time is the slowest rank's, the median over the "
        "iterations; bandwidths are defined as in nccl-tests.",
    )
    parser.add_argument("-n", "--nproc", type=int, default=2, help="ranks, default %(default)s")
    parser.add_argument("--backend", default="ringcomm", help="default %(default)s")
    parser.add_argument("--against", metavar="BACKEND", help="measure this one too, in turn")
    parser.add_argument("--op", action="append", choices=OPS, help="may be repeated")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--redop", choices=REDOPS, default="sum")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("-b", "--min-bytes", type=parse_size, default="1K", metavar="SIZE")
    parser.add_argument("-e", "--max-bytes", type=parse_size, default="64M", metavar="SIZE")
    parser.add_argument("-f", "--step-factor", type=int, default=4, metavar="FACTOR")
    parser.add_argument("--sizes", type=parse_sizes, metavar="LIST", help="such as 4,64K,25M")
    parser.add_argument("--iters", type=int, help="iterations a row")
    parser.add_argument(
        "--min-time", type=float, default=0.5, help="else seconds a row, default %(default)s"
    )
    parser.add_argument(
        "--algorithms", action="store_true", help="only print which sizes take which algorithm"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the rows here")
    options = parser.parse_args(argv)
    if options.nproc < 1:
        parser.error(f"--nproc is {options.nproc}, must be at least 1")
    if options.iters is not None and options.iters < 1:
        parser.error(f"--iters is {options.iters}, must be at least 1")
    if options.redop == "avg" and not DTYPES[options.dtype].is_floating_point:
        parser.error(f"--redop avg needs a floating-point --dtype, not {options.dtype}")
    if options.sizes is None:
        try:
            options.sizes = size_range(options.min_bytes, options.max_bytes, options.step_factor)
        except ValueError as error:
            parser.error(str(error))
    options.op = options.op or ["all_reduce"]
    return options


def _pick_device(name: str) -> torch.device:
    import torch

    if name == "cuda":
        if not torch.cuda.is_available():
            raise BackendError("--device cuda: torch sees no CUDA device")
        local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    return torch.device("cpu")


def _rows(
    options: argparse.Namespace, sides: Sequence[Side], plan: Plan, control: Control
) -> Iterator[Row]:
    """Measure and yield one row after another, the same on every rank."""
    from ringcomm.cli.bench_ops import Case, multiple_of
    from ringcomm.cli.measure import measure
    from ringcomm.cli.table import Row

    device = _pick_device(options.device)
    for op in options.op:
        multiple = multiple_of(op, options.dtype, control.world)
        for size in [0] if op == "barrier" else align_sizes(options.sizes, multiple):
            case = Case(op, size, options.dtype, options.redop, control.world, control.rank, device)
            try:
                ours, *rest = measure(case, sides, plan, control)
            except (RuntimeError, ValueError) as error:
                raise BackendError(f"{op} of {size} B {options.dtype}: {error}") from error
            redop = options.redop if case.reduces else "none"
            peer = rest[0] if rest else None
            dtype = "none" if op == "barrier" else options.dtype
            yield Row(op, size, case.count, dtype, redop, control.world, ours, peer)


def _report(options: argparse.Namespace, rows: Iterator[Row], title: str) -> list[Row]:
    """Print rank 0's table as its rows come in; write the files that were asked for."""
    from ringcomm.cli import table

    print(title)
    done: list[Row] = []
    for row in rows:
        if not done or done[-1].op != row.op:
            print(table.header(row.op, options.against))
        done.append(row)
        print(table.line(row), flush=True)
    print(table.footer(done))
    if options.json:
        records = {"title": title.lstrip("# "), "rows": [row.record() for row in done]}
        options.json.write_text(json.dumps(records, indent=1) + "\n")
    if options.plot:
        from ringcomm.cli.plot import plot

        plot(done, options.plot)
    return done


def work(options: argparse.Namespace) -> int:
    """Run as one rank of a job that the environment describes; return the exit status."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from ringcomm.cli.measure import Control, Plan, Side
    from ringcomm.cli.table import total_wrong

    tie_to_launcher()
    warnings.simplefilter("ignore", FutureWarning)  # torch's, at each all_reduce_coalesced
    torch.set_num_threads(1)
    store, rank, world = next(rendezvous("env://", timeout=_OP_TIMEOUT))
    dist.init_process_group(
        options.backend,
        store=PrefixStore("bench_group", store),
        rank=rank,
        world_size=world,
        timeout=_OP_TIMEOUT,
    )
    sides = [Side(options.backend, None)]
    if options.against:
        sides.append(Side(options.against, dist.new_group(backend=options.against)))
    control = Control(store, rank, world)
    rows = _rows(options, sides, Plan(options.iters, options.min_time), control)
    if rank == 0:
        against = f" against {options.against}" if options.against else ""
        title = f"# {options.backend}{against}, {world} ranks, {options.device}"
        done = _report(options, rows, f"{title}, torch {torch.__version__}")
    else:
        done = list(rows)
    control.exchange(None)  # rank 0's store outlives everybody's last use of it
    dist.destroy_process_group()
    return 0 if total_wrong(done) == 0 else 1


def print_algorithms(world: int) -> int:
    """Print which sizes take which algorithm in a group of `world` ranks; return 0."""
    from rich.console import Console

    from ringcomm.cli.algorithms import algorithm_table, current_algorithms

    Console(highlight=False).print(algorithm_table(current_algorithms(world)))
    return 0


def main(argv: Sequence[str]) -> int:
    """Measure; return 0, or 1 if a value was wrong, a rank failed, or something is missing."""
    try:
        require_torch()
        options = parse(argv)
        if options.algorithms:
            return print_algorithms(options.nproc)
        for name in filter(None, (options.backend, options.against)):
            require_backend(name)
        if options.plot:
            from ringcomm.cli.plot import load_pyplot

            load_pyplot()  # fail before the measurement, not after it
        if "RANK" in os.environ:
            return work(options)
        launch([sys.executable, "-m", "ringcomm", "bench", *argv], options.nproc)
    except (RuntimeError, ValueError) as error:  # of ours, of an option, and what torch raises
        print(f"ringcomm bench: {error}", file=sys.stderr)
        return 1
    return 0
