"""Hugging Face Accelerate on a backend of your choice: two spirals, told apart by a small net.

    pip install accelerate
    torchrun --nproc-per-node 2 examples/train_accelerate.py
    torchrun --nproc-per-node 2 examples/train_accelerate.py --backend gloo

Accelerate takes the process group that it finds, on CPUs and on GPUs. Where it has GPUs, its own
`Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="ringcomm")])` does the same; for CPUs
it would insist on gloo.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ringcomm  # noqa: F401  registers the backend; torch 2.14 finds it without


def spirals(points: int) -> tuple[Tensor, Tensor]:
    """Return (points, 2) coordinates and which of the two arms (0 or 1) each lies on."""
    arm = torch.arange(points) % 2
    turn = torch.rand(points).sqrt() * 1.5 * math.pi
    angle = turn + math.pi * arm
    return torch.stack([turn * angle.cos(), turn * angle.sin()], 1), arm


def main() -> None:
    """Train, and print the loss of every epoch, over all ranks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--backend", default="ringcomm", help="default %(default)s")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(*spirals(1024)), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    accelerator.print(f"{accelerator.num_processes} ranks on {dist.get_backend()}")
    for epoch in range(options.epochs):
        losses = []
        for points, arms in loader:
            loss = nn.functional.cross_entropy(model(points), arms)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        mean = accelerator.gather(torch.stack(losses)).mean()
        accelerator.print(f"epoch {epoch + 1}: loss {mean:.6f}")
    accelerator.end_training()  # destroys the process group


if __name__ == "__main__":
    main()
