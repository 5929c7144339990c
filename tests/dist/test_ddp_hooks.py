"""Communication hooks of DDP on ringcomm do what they do on gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)

from dist.pool import ranks
from dist.test_ddp import train
from dist.worker import agree


def registered(make):
    """Registers what `make` gives of the group: a state and a hook."""
    return lambda model, group: model.register_comm_hook(*make(group))


def bf16(group):
    """As a function of its own: DDP asks for CUDA where it sees the name of torch's."""
    return group, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket)


def power(group):
    return powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=0.5
    )


def local(group):
    """Global gradients for two steps, then those of this rank alone."""
    alone, _ = dist.new_subgroups(group_size=1)
    state = post_localSGD_hook.PostLocalSGDState(group, alone, start_localSGD_iter=2)
    return state, post_localSGD_hook.post_localSGD_hook


def in_parts(group):
    """Chains collectives: a part of the sum to each rank, then all parts to everybody."""

    def hook(_, bucket):
        world, gradient = dist.get_world_size(group), bucket.buffer()
        padded = nn.functional.pad(gradient, (0, -gradient.numel() % world)) / world
        part = torch.empty(padded.numel() // world)
        scattered = dist.reduce_scatter_tensor(part, padded, group=group, async_op=True)

        def gather(_):
            dist.all_gather_into_tensor(padded, part, group=group)
            return padded[: gradient.numel()]

        return scattered.get_future().then(gather)

    return None, hook


HOOKS = {
    "allreduce": lambda group: (group, default_hooks.allreduce_hook),
    "noop": lambda group: (None, debugging_hooks.noop_hook),
    "fp16": lambda group: (group, default_hooks.fp16_compress_hook),
    "bf16": bf16,
    "powerSGD": lambda group: (power(group), powerSGD_hook.powerSGD_hook),
    "fp16 powerSGD": lambda group: (
        power(group),
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    ),
    "post-localSGD": local,
}
OWN_WAYS = ("noop", "post-localSGD")  # the ranks part
ONE_BUCKET = ("powerSGD", "fp16 powerSGD")


@pytest.mark.parametrize("hook", HOOKS)
@ranks(2, 3, timeout=30)
def test_communication_hooks(hook):
    """Callbacks that issue further collectives have a given order with one bucket only.

    On two ranks the sums are the same to the last bit, in whatever precision.
    """
    arguments = {"hook": registered(HOOKS[hook]), "steps": 5}
    if hook in ONE_BUCKET:
        arguments["bucket_cap_mb"] = 25.0
    two = dist.get_world_size() == 2
    ours, theirs = train("ringcomm", **arguments), train("gloo", **arguments)
    for tensor, expected in zip(ours, theirs, strict=True):
        tolerance = {"rtol": 0, "atol": 0} if two else {"rtol": 0.02, "atol": 0.02}
        torch.testing.assert_close(tensor, expected, **tolerance)
        if tensor.dim() == 2 and hook not in OWN_WAYS:
            agree(tensor)


@ranks(2, 3)
def test_hook_of_several_collectives():
    ours = train("ringcomm", hook=registered(in_parts), bucket_cap_mb=25.0, steps=3)
    for tensor, expected in zip(ours, train("ringcomm", steps=3), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5)
        if tensor.dim() == 2:
            agree(tensor)


def sgd(rate):
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


@ranks(2)
def test_optimizer_in_the_backward_pass():
    """Each bucket's parameters step as soon as it is reduced, as they do after the whole pass."""

    def fused(model, _):
        model._register_fused_optim(torch.optim.SGD, lr=0.1)

    ours = train("ringcomm", hook=fused, optimizer=sgd(0.0), steps=3)
    for tensor, expected in zip(ours, train("ringcomm", optimizer=sgd(0.1), steps=3), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6)
        if tensor.dim() == 2:
            agree(tensor)


@ranks(2)
def test_half_precision_stays_near_the_exact_sum():
    exact = train("ringcomm", steps=3)
    for hook in ("fp16", "bf16"):
        rounded = train("ringcomm", hook=registered(HOOKS[hook]), steps=3)
        for ours, theirs in zip(rounded, exact, strict=True):
            torch.testing.assert_close(ours.double(), theirs.double(), rtol=0.1, atol=0.05)
