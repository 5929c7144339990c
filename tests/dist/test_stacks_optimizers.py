"""Optimizers and averaging that talk to other ranks."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    default_hooks,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from dist.pool import ranks
from dist.training import adam, assert_trained, network, train_alone, train_on_ranks
from dist.worker import agree, place


@ranks(2, 3)
def test_zero_redundancy_optimizer_trains_as_one_process():
    here = place()
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    train_on_ranks(model, optimizer)
    for ours, alone in zip(model.parameters(), train_alone(adam, here.world), strict=True):
        torch.testing.assert_close(ours, alone, rtol=1e-5, atol=1e-6)
        agree(ours)
    optimizer.consolidate_state_dict(to=0)
    if here.rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


@ranks(2)
def test_post_local_sgd():
    """Steps of each rank's own, averaged after every second one."""
    alone, _ = dist.new_subgroups(group_size=1)
    model = DistributedDataParallel(network())
    state = post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=1)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=1)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
    train_on_ranks(model, optimizer, steps=3)
    own = [tensor.detach().clone() for tensor in model.parameters()]
    assert averager.step == 3
    train_on_ranks(model, optimizer, steps=1)
    for tensor in model.parameters():
        agree(tensor)
    first, second = torch.empty_like(own[0]), own[0].clone()
    dist.all_reduce(second, dist.ReduceOp.MAX)
    first.copy_(own[0])
    dist.all_reduce(first, dist.ReduceOp.MIN)
    assert not torch.equal(first, second)  # they had gone ways of their own


@ranks(2)
def test_zero_redundancy_optimizer_in_the_backward_pass():
    """The hook reduces every bucket to its owner, which steps and broadcasts the new parameters."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.0004, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.1, overlap_with_ddp=True
    )
    hook = ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer)
    model.register_comm_hook(None, hook)
    # Until DDP has built its buckets anew the optimizer only looks on: the first two steps.
    train_on_ranks(model, optimizer, steps=2)
    assert_trained(model.parameters(), sgd, steps=0)
    train_on_ranks(model, optimizer, steps=3)
    for tensor in model.parameters():
        agree(tensor)
    assert_trained(model.parameters(), sgd)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def stepped(model, value):
    """As after an optimizer's step: parameters without gradients are not averaged."""
    for tensor in model.parameters():
        tensor.data.fill_(value)
        tensor.grad = torch.zeros_like(tensor)


@ranks(2, 3)
def test_periodic_averaging():
    here = place()
    model = nn.Linear(2, 2)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=1)
    seen = []
    for step in range(4):
        stepped(model, here.rank + 10.0 * step)
        averager.average_parameters(list(model.parameters()))
        seen.append(float(model.weight[0, 0]))
    mean = (here.world - 1) / 2
    assert seen == [here.rank, 10 + mean, here.rank + 20, 30 + mean]


@ranks(4)
def test_hierarchical_averaging():
    """Pairs every second step, all four every fourth."""
    here = place()
    model = nn.Linear(2, 2)
    averager = hierarchical_model_averager.HierarchicalModelAverager(
        period_group_size_dict=OrderedDict([(2, 2), (4, 4)])
    )
    seen = []
    for step in range(5):
        stepped(model, here.rank + 10.0 * step)
        averager.average_parameters(list(model.parameters()))
        seen.append(float(model.weight[0, 0]))
    pair = (0.5, 0.5, 2.5, 2.5)[here.rank]
    assert seen == [1.5, here.rank + 10, 20 + pair, here.rank + 30, 41.5]
