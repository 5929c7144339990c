"""Tensors on meshes of ranks: redistribution, tensor and sequence parallelism."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from dist.pool import ranks
from dist.training import adam, assert_trained, network, train_on_ranks
from dist.worker import place


@ranks(2, 3)
def test_redistribution_of_tensors():
    here = place()
    mesh = init_device_mesh("cpu", (here.world,))
    whole = torch.arange(7.0 * 5).view(7, 5)  # divides by no number of ranks here
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(placements=[Shard(1)])
    assert torch.equal(columns.to_local(), whole.chunk(here.world, 1)[here.rank])
    assert torch.equal(columns.redistribute(placements=[Replicate()]).to_local(), whole)
    assert torch.equal(rows.full_tensor(), whole)
    partial = DTensor.from_local(whole * (here.rank + 1), mesh, [Partial()])
    total = whole * (here.world * (here.world + 1) / 2)
    assert torch.equal(partial.full_tensor(), total)
    scattered = partial.redistribute(placements=[Shard(0)])
    chunks = total.chunk(here.world, 0)
    assert torch.equal(scattered.to_local(), chunks[here.rank])
    product = distribute_tensor(whole, mesh, [Shard(1)]) @ distribute_tensor(
        whole.t(), mesh, [Shard(0)]
    )
    torch.testing.assert_close(product.full_tensor(), whole @ whole.t())


@ranks(4)
def test_a_mesh_of_two_dimensions():
    here = place()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    row, column = here.rank // 2, here.rank % 2
    for name, expected in (("rows", 2 * column + 2), ("columns", 4 * row + 1)):
        tensor = torch.tensor([float(here.rank)])
        dist.all_reduce(tensor, group=mesh[name].get_group())
        assert tensor.item() == expected
    whole = torch.arange(16.0).view(4, 4)
    block = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert block.to_local().shape == (2, 2)
    assert torch.equal(block.full_tensor(), whole)


@pytest.mark.parametrize("before", ["rows", "columns", "whole", "sum", "mean", "largest"])
@ranks(2, 3)
def test_every_redistribution(before):
    here = place()
    mesh = init_device_mesh("cpu", (here.world,))
    whole = torch.arange(7.0 * 5).view(7, 5)
    given = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate()}
    reductions = {"sum": "sum", "mean": "avg", "largest": "max"}
    if before in given:
        tensor = distribute_tensor(whole, mesh, [given[before]])
    else:
        own = {"sum": whole / here.world, "mean": whole, "largest": whole - here.rank}[before]
        tensor = DTensor.from_local(own, mesh, [Partial(reductions[before])])
    for after in given.values():
        moved = tensor.redistribute(placements=[after])
        torch.testing.assert_close(moved.full_tensor(), whole)
        expected = distribute_tensor(whole, mesh, [after]).to_local()
        torch.testing.assert_close(moved.to_local(), expected)


class Feed(nn.Module):
    """A norm and a feed-forward net, as in a transformer's layer, and a head."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 24)
        self.down = nn.Linear(24, 8)
        self.head = nn.Linear(8, 12)

    def forward(self, inputs):
        return self.head(inputs + self.down(torch.relu(self.up(self.norm(inputs)))))


def feed_and_data():
    torch.manual_seed(3)
    return Feed(), torch.randn(2, 6, 8), torch.randint(12, (2, 6))


def step_alone(model, inputs, targets):
    """The loss before and the parameters after one step of gradient descent."""
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    with torch.no_grad():
        return loss.detach(), [tensor - tensor.grad for tensor in model.parameters()]


PLANS = {
    "columns then rows": lambda: {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    },
    "sequence": lambda: {
        "": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        ),
        "norm": SequenceParallel(use_local_output=True),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
}


@pytest.mark.parametrize("plan", PLANS)
@ranks(2, 3)
def test_tensor_parallelism(plan):
    here = place()
    model, inputs, targets = feed_and_data()
    loss, expected = step_alone(copy.deepcopy(model), inputs, targets)
    parallelize_module(model, init_device_mesh("cpu", (here.world,)), PLANS[plan]())
    ours, after = step_alone(model, inputs, targets)
    torch.testing.assert_close(ours, loss)
    for tensor, alone in zip(after, expected, strict=True):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        torch.testing.assert_close(whole, alone, rtol=1e-4, atol=1e-6)


@ranks(2, 3)
def test_loss_of_sharded_logits():
    here = place()
    model, inputs, targets = feed_and_data()
    loss, expected = step_alone(copy.deepcopy(model), inputs, targets)
    sharded_head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, init_device_mesh("cpu", (here.world,)), {"head": sharded_head})
    with loss_parallel():
        logits = model(inputs).flatten(0, 1)
        ours = nn.functional.cross_entropy(logits, targets.flatten())
        ours.backward()
    torch.testing.assert_close(ours.full_tensor().detach(), loss)
    weight = model.head.weight
    torch.testing.assert_close((weight - weight.grad).full_tensor(), expected[-2])


@ranks(4)
def test_tensor_parallel_in_sharded_data_parallel():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = network()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    fully_shard(model, mesh=mesh["data"])
    train_on_ranks(model, adam(model.parameters()), position=(mesh["data"].get_local_rank(), 2))
    assert_trained([tensor.full_tensor() for tensor in model.parameters()], world=2)
