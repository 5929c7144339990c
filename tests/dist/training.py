"""One small model, its data, and its training on ranks and in one process that has all the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dist.worker import place

STEPS = 3


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 3)
    )


def batches(world: int, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Every rank's inputs and targets of every step."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(steps, world, 4, 6, generator=generator)
    return inputs, torch.randn(steps, world, 4, 3, generator=generator)


def adam(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def train_alone(
    make_optimizer: Callable[..., Any], world: int, steps: int = STEPS
) -> list[nn.Parameter]:
    """One process that has all ranks' data: what the others have to come to."""
    model = network()
    optimizer = make_optimizer(model.parameters())
    inputs, targets = batches(world, steps)
    for step in range(steps):
        optimizer.zero_grad()
        all_inputs, all_targets = inputs[step].flatten(0, 1), targets[step].flatten(0, 1)
        nn.functional.mse_loss(model(all_inputs), all_targets).backward()
        optimizer.step()
    return list(model.parameters())


def train_on_ranks(
    model: Any, optimizer: Any, steps: int = STEPS, position: tuple[int, int] | None = None
) -> None:
    """Trains on this rank's share. position: the share and their number, if not rank and world."""
    rank, world = position or (place().rank, place().world)
    inputs, targets = batches(world, steps)
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[step, rank]), targets[step, rank]).backward()
        optimizer.step()


def assert_trained(
    parameters: Iterable[Tensor],
    make_optimizer: Callable[..., Any] = adam,
    world: int | None = None,
    steps: int = STEPS,
) -> None:
    """These are what one process comes to with the data of all ranks (or of so many shares)."""
    expected = train_alone(make_optimizer, world or place().world, steps)
    for ours, alone in zip(parameters, expected, strict=True):
        torch.testing.assert_close(ours.detach(), alone.detach(), rtol=1e-5, atol=1e-6)
