"""DistributedDataParallel on ringcomm trains as on gloo, and all ranks stay bitwise equal."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
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


def train(backend, build=plain, hook=None, accumulate=1, steps=STEPS, **arguments):
    """Returns all parameters and buffers after the steps, on a group of this backend."""
    here = place()
    group = dist.new_group(backend=backend)
    torch.manual_seed(here.rank)  # DDP broadcasts rank 0's
    arguments.setdefault("bucket_cap_mb", 0.02)
    model = DistributedDataParallel(build(), process_group=group, **arguments)
    if hook is not None:
        hook(model, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
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
    dist.destroy_process_group(group)
    return state


def compare_and_agree(**arguments):
    """Parameters are equal on all ranks; the statistics of batch norm are each rank's own."""
    state = train("ringcomm", **arguments)
    expected = train("gloo", **arguments)
    for ours, theirs in zip(state, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)
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


def power_sgd(model, group):
    state = powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=0.5
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


HOOKS = {
    "allreduce": lambda model, group: model.register_comm_hook(group, default_hooks.allreduce_hook),
    "fp16": lambda model, group: model.register_comm_hook(group, default_hooks.fp16_compress_hook),
    "powerSGD": power_sgd,
}


@pytest.mark.parametrize("hook", HOOKS)
@ranks(2, 3, timeout=30)
def test_communication_hooks(hook):
    """PowerSGD's callbacks issue further collectives: only with one bucket is their order given."""
    buckets = {"bucket_cap_mb": 25.0} if hook == "powerSGD" else {}
    for tensor in train("ringcomm", hook=HOOKS[hook], **buckets):
        if tensor.dim() == 2:
            agree(tensor)
            assert tensor.isfinite().all()


@ranks(2)
def test_half_precision_hook_stays_near_the_exact_one():
    exact = train("ringcomm", steps=3)
    rounded = train("ringcomm", hook=HOOKS["fp16"], steps=3)
    for ours, theirs in zip(rounded, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=0.1, atol=0.05)


@ranks(2)
def test_join_with_uneven_inputs():
    """Join needs all_reduce and broadcast only; the rank with less data shadows the other."""
    here = place()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(3 + 2 * here.rank):
            model(torch.full((2, 4), float(step))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    agree(model.module.weight)
