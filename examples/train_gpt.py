"""Train a small GPT on the Python standard library's own source text, with plain DDP.

Nothing here knows a backend but by name:

    torchrun --nproc-per-node 2 examples/train_gpt.py --backend ringcomm
    torchrun --nproc-per-node 2 examples/train_gpt.py --backend gloo

Every few steps the same forward and backward pass runs once more on the same batch without
gradient synchronisation. What a synchronised pass takes longer than that, in medians over the
run and of the slowest rank, is the communication that the backward pass could not hide.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 256  # bytes
WARMUP_STEPS = 2  # the first steps allocate and rebuild DDP's buckets


class Block(nn.Module):
    """One transformer layer: causal self-attention, then a feed-forward net of 4x the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, time_, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time_, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, time_, width))
        fed: Tensor = self.feed(self.norm2(x))
        return x + fed


class GPT(nn.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, bytes_: Tensor) -> Tensor:
        """Map bytes (batch, time) to logits (batch, time, 256)."""
        x = self.tokens(bytes_) + self.positions.weight[: bytes_.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class Text:
    """Random windows of the standard library's source text, different ones on every rank."""

    def __init__(self, limit: int, context: int, batch: int, seed: int) -> None:
        folder = Path(sysconfig.get_path("stdlib"))
        text = bytearray()
        for file in sorted(folder.glob("*.py")):
            text += file.read_bytes()
            if len(text) >= limit:
                break
        if min(len(text), limit) <= context + 1:
            raise SystemExit(
                f"train_gpt: {min(len(text), limit)} bytes of text from {folder} are too few for "
                f"a context of {context}: it takes at least {context + 2}"
            )
        self.data = torch.frombuffer(text[:limit], dtype=torch.uint8).clone()
        self.context, self.batch = context, batch
        self.random = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self.data.numel()

    def next(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return (bytes, the byte after each), both (batch, context)."""
        last = len(self) - self.context - 1
        starts = torch.randint(0, last, (self.batch, 1), generator=self.random)
        window = self.data[starts + torch.arange(self.context + 1)].long().to(device)
        return window[:, :-1], window[:, 1:]


class Trainer:
    """The model, its optimiser and its data, and the times that their steps took."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        torch.manual_seed(options.seed)
        model = GPT(options.layers, options.width, options.heads, options.context).to(device)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.model = DistributedDataParallel(model)
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
        seed = options.seed * 1000 + dist.get_rank()
        self.text = Text(options.text_bytes, options.context, options.batch, seed)
        self.device = device
        self.losses: list[float] = []
        self.step_s: list[float] = []
        self.synced_s: list[float] = []
        self.unsynced_s: list[float] = []

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _pass(self, bytes_: Tensor, following: Tensor, sync: bool) -> tuple[float, float]:
        """Run forward and backward; return (loss, seconds)."""
        self.optimiser.zero_grad(set_to_none=True)
        begin = self._now()
        with contextlib.nullcontext() if sync else self.model.no_sync():
            logits = self.model(bytes_)
            loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.item(), self._now() - begin

    def step(self, probe: bool) -> None:
        """Train one batch; with ``probe`` also time the pass without synchronisation first."""
        bytes_, following = self.text.next(self.device)
        if probe:
            self.unsynced_s.append(self._pass(bytes_, following, sync=False)[1])
            dist.barrier()  # both passes start with the ranks level
        begin = self._now()
        loss, seconds = self._pass(bytes_, following, sync=True)
        self.optimiser.step()
        self.step_s.append(self._now() - begin)
        self.synced_s.append(seconds)
        self.losses.append(loss)


def slowest(own: list[float]) -> list[float]:
    """Return, for each step, the largest value over the ranks."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return [max(values) for values in zip(*every, strict=True)]


def summarise(trainer: Trainer, options: argparse.Namespace) -> dict[str, Any]:
    """Gather the ranks' losses and times into one record; every rank must call it."""
    world = dist.get_world_size()
    every: list[Any] = [None] * world
    dist.all_gather_object(every, trainer.losses)
    losses = [sum(values) / world for values in zip(*every, strict=True)]
    step = statistics.median(slowest(trainer.step_s)[WARMUP_STEPS:])
    synced = statistics.median(slowest(trainer.synced_s)[WARMUP_STEPS:])
    unsynced_s = slowest(trainer.unsynced_s)
    record: dict[str, Any] = {
        "backend": dist.get_backend(),
        "world_size": world,
        "device": trainer.device.type,
        "parameters": trainer.parameters,
        "gradient_bytes": 4 * trainer.parameters,
        "losses": losses,
        "tokens_per_s": world * options.batch * options.context / step,
        "step_ms": step * 1e3,
        "compute_ms": None,
        "exposed_ms": None,
        "exposed_percent": None,
    }
    if unsynced_s:
        compute = statistics.median(unsynced_s)
        exposed = synced - compute
        record |= {
            "compute_ms": compute * 1e3,
            "exposed_ms": exposed * 1e3,
            "exposed_percent": 100 * exposed / step,
        }
    return record


def result_table(record: dict[str, Any]) -> Table:
    """Return the run's figures as a table of two columns."""
    table = Table(title=f"{record['backend']}, {record['world_size']} ranks", show_header=False)
    losses = record["losses"]
    table.add_row("parameters", f"{record['parameters'] / 1e6:.2f} M")
    table.add_row("gradients", f"{record['gradient_bytes'] / 1e6:.1f} MB a step")
    table.add_row("loss, first and last step", f"{losses[0]:.4f}, {losses[-1]:.4f}")
    table.add_row("throughput", f"{record['tokens_per_s']:.0f} tokens/s")
    table.add_row("step", f"{record['step_ms']:.1f} ms")
    if record["exposed_ms"] is not None:
        table.add_row("the pass without communication", f"{record['compute_ms']:.1f} ms")
        share = f"{record['exposed_percent']:.1f} % of the step"
        table.add_row("exposed communication", f"{record['exposed_ms']:.1f} ms, {share}")
    return table


def train(trainer: Trainer, options: argparse.Namespace, console: Console) -> None:
    """Run all steps, with a progress bar on rank 0 (lines of text where that is no terminal)."""
    tokens = dist.get_world_size() * options.batch * options.context
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    shown = dist.get_rank() == 0
    every = max(1, options.steps // 5)
    with Progress(*columns, console=console, disable=not shown) as progress:
        task = progress.add_task(dist.get_backend(), total=options.steps)
        for number in range(1, options.steps + 1):
            measured = number > WARMUP_STEPS
            trainer.step(probe=measured and number % options.probe_every == 0)
            seconds = trainer.step_s[-1]
            state = (
                f"{dist.get_backend()}: loss {trainer.losses[-1]:.3f}, "
                f"{tokens / seconds:.0f} tokens/s, {seconds * 1e3:.0f} ms/step"
            )
            progress.update(task, advance=1, description=state)
            if shown and not console.is_terminal and number % every == 0:
                console.print(f"step {number}/{options.steps}  {state}", highlight=False)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--backend", default="ringcomm", help="default %(default)s")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--context", type=int, default=64, help="bytes that the model sees")
    parser.add_argument("--batch", type=int, default=4, help="windows a rank and step")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--text-bytes", type=int, default=2_000_000, help="how much text to load")
    parser.add_argument("--probe-every", type=int, default=4, help="steps between probes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the losses and figures here")
    options = parser.parse_args()
    if options.steps <= WARMUP_STEPS:
        parser.error(f"--steps is {options.steps}, must be more than {WARMUP_STEPS}")
    for name in ("layers", "heads", "context", "batch", "probe_every"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.width < 1 or options.width % options.heads:
        parser.error(f"--width is {options.width}, must be a multiple of --heads")
    return options


def main() -> None:
    """Train, then print and write what was measured."""
    options = parse_options()
    torch.set_num_threads(1)
    if not dist.is_backend_available(options.backend):
        importlib.import_module(options.backend)  # such a module registers the backend
    device = torch.device(options.device)
    if device.type == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(options.backend)
    console = Console()
    trainer = Trainer(options, device)
    train(trainer, options, console)
    record = summarise(trainer, options)
    if dist.get_rank() == 0:
        console.print(result_table(record))
        if options.json:
            Path(options.json).write_text(json.dumps(record) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
