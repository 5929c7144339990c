"""DistributedDataParallel on ringcomm trains as on gloo, and all ranks stay bitwise equal."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist.pool import ranks
from dist.worker import agree, place

STEPS = 10


class Branches(nn.Module):
    """Uses its second branch on odd calls only."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.even = nn.Linear(16, 4)
        self.odd = nn.Linear(16, 4)
        self.norm = nn.BatchNorm1d(16)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        hidden = torch.relu(self.norm(self.first(inputs)))
        return (self.odd if self.calls % 2 else self.even)(hidden)


def plain():
    return nn.Sequential(
        *(nn.Linear(16, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.GELU()),
        *(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 4)),
    )


_gloo = None


def gloo_group():
    """One for as long as the default group lives.

    A group of gloo's that ends just after an operation hangs at times, and the process with it,
    as it does where nothing but gloo is used; one that has been idle ends safely.
    """
    global _gloo
    if _gloo not in dist.distributed_c10d._world.pg_map:
        _gloo = dist.new_group(backend="gloo")
    return _gloo


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def train(backend, build=plain, hook=None, accumulate=1, steps=STEPS, optimizer=adam, **arguments):
    """Returns all parameters and buffers after the steps, on a group of this backend."""
    here = place()
    group = dist.new_group() if backend == "ringcomm" else gloo_group()
    torch.manual_seed(here.rank)  # DDP broadcasts rank 0's
    arguments.setdefault("bucket_cap_mb", 0.02)
    model = DistributedDataParallel(build(), process_group=group, **arguments)
    if hook is not None:
        hook(model, group)
    optimizer = optimizer(model.parameters())
    data = torch.Generator().manual_seed(100 + here.rank)
    for _ in range(steps):
        for micro in range(accumulate):
            inputs = torch.randn(8, 16, generator=data)
            targets = torch.randn(8, 4, generator=data)
            if micro + 1 < accumulate:
                with model.no_sync():
                    nn.functional.mse_loss(model(inputs), targets).backward()
            else:
                nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = [tensor.detach().clone() for tensor in model.module.state_dict().values()]
    del model
    if backend == "ringcomm":
        dist.destroy_process_group(group)
    return state


def compare_and_agree(tolerance=None, **arguments):
    """Parameters are equal on all ranks; the statistics of batch norm are each rank's own."""
    state = train("ringcomm", **arguments)
    expected = train("gloo", **arguments)
    for ours, theirs in zip(state, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **(tolerance or {"rtol": 2e-5, "atol": 2e-6}))
        if ours.dim() == 2:
            agree(ours)


@pytest.mark.smoke
@ranks(2)
def test_three_steps():
    compare_and_agree(steps=3)


@ranks(2, 3)
def test_ten_steps():
    compare_and_agree()


@pytest.mark.parametrize(
    "arguments",
    [
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"broadcast_buffers": False},
        {"find_unused_parameters": True, "build": Branches},
        {"accumulate": 3},
        {"accumulate": 2, "gradient_as_bucket_view": True},
    ],
    ids=lambda arguments: ",".join(arguments),
)
@ranks(2)
def test_modes(arguments):
    compare_and_agree(**arguments)
