"""Collectives as functions: eager, compiled, and with gradients."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist.pool import ranks
from dist.training import adam, assert_trained, network, train_on_ranks
from dist.worker import place


@ranks(2, 3)
def test_functional_collectives():
    here = place()
    world, own = here.world, torch.full((4,), float(here.rank))
    one = dist.group.WORLD
    assert (funcol.all_reduce(own, "sum", one) == sum(range(world))).all()
    assert (own == here.rank).all()
    gathered = funcol.all_gather_tensor(own, 0, one)
    assert torch.equal(gathered, torch.arange(float(world)).repeat_interleave(4))
    spread = torch.arange(float(2 * world)) + here.rank
    total = world * torch.arange(float(2 * world)) + sum(range(world))
    scattered = funcol.reduce_scatter_tensor(spread, "sum", 0, one)
    assert torch.equal(scattered, total[2 * here.rank : 2 * here.rank + 2])
    turned = funcol.all_to_all_single(own.repeat(world)[: 2 * world], None, None, one)
    assert torch.equal(turned, torch.arange(float(world)).repeat_interleave(2))
    assert (funcol.broadcast(own, 1, one) == 1).all()
    several = funcol.all_reduce_coalesced([own, own * 2], "max", one)
    assert [float(tensor[0]) for tensor in several] == [world - 1, 2 * (world - 1)]
    several = funcol.all_gather_into_tensor_coalesced([own, own[:1]], one)
    assert [tensor.numel() for tensor in several] == [4 * world, world]
    several = funcol.reduce_scatter_tensor_coalesced([spread, spread], "sum", [0, 0], one)
    assert torch.equal(several[1], total[2 * here.rank : 2 * here.rank + 2])


@ranks(2, 3)
def test_functions_with_gradients():
    here = place()
    world, everybody = here.world, dist.group.WORLD  # the default is the first group ever made

    def leaf(*shape):
        return torch.full(shape, float(here.rank + 1), requires_grad=True)

    tensor = leaf(3)
    (dist_nn.all_reduce(tensor, group=everybody) * (here.rank + 1)).sum().backward()
    assert (tensor.grad == world * (world + 1) / 2).all()
    tensor = leaf(3)
    torch.stack(dist_nn.all_gather(tensor, everybody)).mul(here.rank + 1).sum().backward()
    assert (tensor.grad == world * (world + 1) / 2).all()
    tensor = leaf(3)
    dist_nn.broadcast(tensor, 1, everybody).sum().backward()
    assert (tensor.grad == (world if here.rank == 1 else 0)).all()
    tensor = leaf(world, 2)
    outputs = dist_nn.all_to_all_single(torch.empty(world, 2), tensor, group=everybody)
    (outputs * (here.rank + 1)).sum().backward()
    assert torch.equal(tensor.grad[:, 0], torch.arange(1.0, world + 1))
    inputs = [leaf(2) for _ in range(world)]
    output = dist_nn.reduce_scatter(torch.empty(2), inputs, group=everybody)
    assert (output == world * (world + 1) / 2).all()
    (output * (here.rank + 1)).sum().backward()
    assert [float(one.grad[0]) for one in inputs] == [float(rank + 1) for rank in range(world)]
    tensor = leaf(2)
    gathered = dist_nn.gather(tensor, 0, everybody)
    (torch.stack(list(gathered)) * (here.rank + 5)).sum().backward()
    assert (tensor.grad == 5).all()


def several(tensor, group):
    """One of each, on a tensor of as many rows as ranks."""
    reduced = funcol.all_reduce(tensor, "avg", group)
    gathered = funcol.all_gather_tensor(tensor[:1] * 2, 0, group)
    scattered = funcol.reduce_scatter_tensor(tensor + 1, "sum", 0, group)
    turned = funcol.all_to_all_single(tensor, None, None, group)
    sent = funcol.broadcast(tensor * 3, 1, group)
    return reduced, gathered, scattered, turned, sent


def in_place(tensor, group):
    """What torch.compile turns into functions by itself."""
    copy = tensor * 1
    dist.all_reduce(copy, group=group)
    gathered = torch.empty(dist.get_world_size(group) * len(tensor), tensor.shape[1])
    dist.all_gather_into_tensor(gathered, copy, group=group)
    scattered = torch.empty(len(tensor) // dist.get_world_size(group), tensor.shape[1])
    dist.reduce_scatter_tensor(scattered, tensor, group=group)
    return copy, gathered, scattered


@pytest.mark.parametrize("function", [several, in_place])
@ranks(2)
def test_compiled_functions(function):
    here = place()
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    tensor = torch.arange(2.0 * here.world).view(here.world, 2) + 10 * here.rank
    eager = function(tensor, dist.group.WORLD)
    for ours, expected in zip(compiled(tensor, dist.group.WORLD), eager, strict=True):
        assert torch.equal(ours, expected)
    everybody = torch.arange(2.0 * here.world).view(here.world, 2) * here.world
    everybody += 10 * sum(range(here.world))
    total = eager[0] * here.world if function is several else eager[0]
    torch.testing.assert_close(total, everybody)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@ranks(2)
def test_functions_that_autograd_knows(compiled):
    here = place()
    torch._dynamo.reset()

    def chain(tensor):
        gathered = funcol.all_gather_tensor_autograd(tensor, 0, dist.group.WORLD)
        mixed = gathered * torch.arange(1.0, len(gathered) + 1)
        scattered = funcol.reduce_scatter_tensor_autograd(mixed, "sum", 0, dist.group.WORLD)
        return funcol.all_to_all_single_autograd(scattered, None, None, dist.group.WORLD)

    function = torch.compile(chain, backend="aot_eager", fullgraph=True) if compiled else chain
    tensor = torch.full((here.world,), float(here.rank + 1), requires_grad=True)
    output = function(tensor)
    (output * (here.rank + 1)).sum().backward()
    # Element j of rank r is number i = world * r + j: times i + 1 and the number of ranks it comes
    # back to rank r, and is sent to rank j, which weighs it with j + 1.
    numbers = here.world * here.rank + torch.arange(1.0, here.world + 1)
    weights = torch.arange(1.0, here.world + 1)
    assert torch.equal(tensor.grad, here.world * numbers * weights)
    sources = torch.arange(1.0, here.world + 1)
    sent = here.world * sources * (here.world * (sources - 1) + here.rank + 1)
    assert torch.equal(output, sent)


@ranks(2)
def test_compiled_data_parallel_model():
    torch._dynamo.reset()
    model = DistributedDataParallel(network())
    train_on_ranks(torch.compile(model, backend="aot_eager"), adam(model.parameters()))
    assert_trained(model.parameters())


@ranks(2, 3)
def test_more_functions_with_gradients():
    here = place()
    world, everybody = here.world, dist.group.WORLD
    weight = float(here.rank + 1)

    tensors = [torch.full((2,), weight, requires_grad=True) for _ in range(world)]
    scattered = dist_nn.scatter(tensors, 1, everybody)
    assert (scattered == 2).all()  # rank 1's
    (scattered * weight).sum().backward()
    expected = [float(rank + 1) if here.rank == 1 else 0.0 for rank in range(world)]
    assert [float(tensor.grad[0]) for tensor in tensors] == expected

    tensor = torch.full((2,), weight, requires_grad=True)
    reduced = dist_nn.reduce(tensor, 0, group=everybody)
    if here.rank == 0:
        assert (reduced == world * (world + 1) / 2).all()
    (reduced * (weight + 4)).sum().backward()
    assert (tensor.grad == 5).all()  # rank 0's

    tensors = [torch.full((2,), weight * 10 + rank, requires_grad=True) for rank in range(world)]
    outputs = dist_nn.all_to_all([torch.empty(2) for _ in range(world)], tensors, everybody)
    assert [float(one[0]) for one in outputs] == [
        (rank + 1) * 10.0 + here.rank for rank in range(world)
    ]
    (torch.stack(list(outputs)) * weight).sum().backward()
    assert [float(one.grad[0]) for one in tensors] == [rank + 1.0 for rank in range(world)]


@ranks(2)
def test_matrix_product_over_ranks_by_hand():
    """A row-parallel layer, as people write them, gives one process's output and gradients."""
    here = place()
    torch.manual_seed(0)
    whole, inputs = nn.Linear(8, 4, bias=False), torch.randn(3, 8)
    whole(inputs).square().sum().backward()
    own = slice(4 * here.rank, 4 * here.rank + 4)
    part = whole.weight.detach()[:, own].clone().requires_grad_()
    output = dist_nn.all_reduce(inputs[:, own] @ part.t(), group=dist.group.WORLD)
    (output.square().sum() / here.world).backward()
    torch.testing.assert_close(part.grad, whole.weight.grad[:, own])
