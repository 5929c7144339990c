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
from typing import TYPE_CHECKING, Any

from ringcomm.cli.backends import BackendError, require_backend, require_torch
from ringcomm.cli.launch import launch, tie_to_launcher
from ringcomm.cli.sizes import align_sizes, parse_size, parse_sizes, size_range

if TYPE_CHECKING:
    import torch

    from ringcomm.cli.measure import Control, Plan, Side
    from ringcomm.cli.table import Row

_OP_TIMEOUT = datetime.timedelta(seconds=300)


def make_parser() -> argparse.ArgumentParser:
    """Return the command's parser; every option's text ends with its default."""
    from ringcomm.cli.bench_ops import DTYPES, OPS, REDOPS

    parser = argparse.ArgumentParser(
        prog="python -m ringcomm bench",
        description="Measure collectives. Starts its own ranks on this machine, or runs as one "
        "of torchrun's where RANK is set. The time is the slowest rank's, the median over the "
        "iterations; bandwidths are defined as in nccl-tests.",
    )

    def add(*names: str, text: str, shown: str = "%(default)s", **how: Any) -> None:
        parser.add_argument(*names, help=f"{text} (default: {shown})", **how)

    ranks = "ranks to start on this machine; ignored under torchrun, which started its own"
    add("-n", "--nproc", type=int, default=2, text=ranks)
    add("--backend", default="ringcomm", text="the torch.distributed backend to measure")
    against = (
        "measure this one too, in turn; across hosts gloo needs GLOO_SOCKET_IFNAME, the name of "
        "each host's interface in the network that joins them"
    )
    add("--against", metavar="BACKEND", text=against, shown="none")
    ops = f"what to measure, may be repeated: {', '.join(OPS)}"
    add("--op", action="append", choices=OPS, metavar="OP", text=ops, shown="all_reduce")
    add("--dtype", choices=DTYPES, default="float32", text="type of the elements")
    add("--redop", choices=REDOPS, default="sum", text="how to reduce, where OP does")
    add("--device", choices=["cpu", "cuda"], default="cpu", text="where the tensors are")
    size: dict[str, Any] = {"type": parse_size, "metavar": "SIZE"}
    add("-b", "--min-bytes", **size, default="1K", text="smallest message, such as 4 or 64K")
    add("-e", "--max-bytes", **size, default="64M", text="largest message")
    factor = "from one size to the next"
    add("-f", "--step-factor", type=int, default=4, metavar="FACTOR", text=factor)
    sizes = "these sizes instead, such as 4,64K,25M"
    add("--sizes", type=parse_sizes, metavar="LIST", text=sizes, shown="from -b to -e by -f")
    add("--iters", type=int, text="iterations a row", shown="as many as fill --min-time")
    seconds = "seconds a row, where --iters is not given"
    add("--min-time", type=float, default=0.5, metavar="SECONDS", text=seconds)
    algorithms = "only print which sizes take which algorithm on -n ranks"
    add("--algorithms", action="store_true", text=algorithms, shown="measure")
    add("--json", type=Path, metavar="FILE", text="write the rows here", shown="no file")
    add("--plot", type=Path, metavar="FILE.png", text="draw the rows here", shown="no picture")
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command's options; ``sizes`` becomes the list of sizes asked for."""
    from ringcomm.cli.bench_ops import DTYPES

    parser = make_parser()
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
