"""Corners of DistributedDataParallel that its reducer reaches through Futures and sparse sums."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist.pool import ranks
from dist.worker import agree, place


class Tasks(nn.Module):
    """Rank 0 uses the first task, the others the second; nobody uses the third."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, inputs):
        return (self.second if place().rank else self.first)(inputs)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}],
    ids=["plain", "view", "static"],
)
@ranks(2, 3)
def test_unused_parameters(arguments):
    """What no rank uses keeps no gradient; what one rank uses has the average on all."""
    world = place().world
    model = DistributedDataParallel(Tasks(), find_unused_parameters=True, **arguments)
    model(torch.ones(4, 2)).sum().backward()
    module = model.module
    assert module.unused.weight.grad is None
    assert torch.allclose(module.first.weight.grad, torch.full((2, 2), 4 / world))
    assert torch.allclose(module.second.weight.grad, torch.full((2, 2), 4 * (world - 1) / world))


@pytest.mark.parametrize("find_unused", [False, True])
@ranks(2)
def test_outputs_without_backward(find_unused):
    layers = [nn.Linear(2, 10, bias=False), nn.ReLU(), nn.Linear(10, 4, bias=False)]
    network = nn.Sequential(*layers)
    if find_unused:
        network.register_parameter("unused", nn.Parameter(torch.ones(3)))
    model = DistributedDataParallel(network, find_unused_parameters=find_unused)
    inputs, target = torch.rand(4, 2), torch.randint(4, (4,))
    for _ in range(4):
        model(inputs)
    for _ in range(4):
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), target).backward()
        agree(layers[0].weight.grad)
        agree(layers[2].weight.grad)
    assert layers[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("view", [False, True])
@ranks(2, 3)
def test_sparse_gradients_are_those_of_one_process(view):
    here = place()
    torch.manual_seed(1)
    alone = nn.Sequential(nn.EmbeddingBag(10, 10, sparse=True))
    shared = nn.Sequential(nn.EmbeddingBag(10, 10, sparse=True))
    shared.load_state_dict(alone.state_dict())
    words, target = torch.randint(10, (2 * here.world, 2)), torch.randint(10, (2 * here.world,))
    loss = nn.CrossEntropyLoss()
    loss(alone(words), target).backward()
    model = DistributedDataParallel(shared, gradient_as_bucket_view=view)
    mine = slice(2 * here.rank, 2 * here.rank + 2)
    loss(model(words[mine]), target[mine]).backward()
    gradient = shared[0].weight.grad
    assert gradient.is_sparse
    assert torch.allclose(gradient.to_dense(), alone[0].weight.grad.to_dense(), atol=1e-7)


@ranks(2)
def test_hook_that_returns_a_future_of_its_own():
    def all_ones(_, bucket):
        future = torch.futures.Future()
        future.set_result(torch.ones_like(bucket.buffer()))
        return future

    model = DistributedDataParallel(nn.Linear(3, 2))
    model.register_comm_hook(None, all_ones)
    model(torch.ones(1, 3)).sum().backward()
    for parameter in model.parameters():
        assert (parameter.grad == 1).all()


@ranks(2)
def test_hook_that_returns_no_future():
    model = DistributedDataParallel(nn.Linear(3, 2))
    model.register_comm_hook(None, lambda _, bucket: torch.ones_like(bucket.buffer()))
    with pytest.raises(RuntimeError, match=r"must return a torch\.futures\.Future object"):
        model(torch.ones(1, 3)).sum().backward()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2


@ranks(2)
def test_hook_whose_future_has_a_wrong_result():
    def wrong(_, bucket):
        future = torch.futures.Future()
        future.set_result(1)
        return future

    model = DistributedDataParallel(nn.Linear(3, 2))
    model.register_comm_hook(None, wrong)
    with pytest.raises(RuntimeError, match=r"(?i)tensor"):
        model(torch.ones(1, 3)).sum().backward()


@ranks(2)
def test_model_that_is_saved_and_loaded_goes_on_alike():
    def network():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 4))

    here = place()
    data = torch.Generator().manual_seed(here.rank)
    batches = [torch.randn(4, 2, generator=data) for _ in range(6)]

    def train(model, optimizer, steps):
        for inputs in steps:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

    straight = DistributedDataParallel(network())
    train(straight, torch.optim.SGD(straight.parameters(), 0.1, momentum=0.9), batches)

    first = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(first.parameters(), 0.1, momentum=0.9)
    train(first, optimizer, batches[:3])
    saved = [[first.state_dict(), optimizer.state_dict()] if here.rank == 0 else None]
    dist.broadcast_object_list(saved)
    second = DistributedDataParallel(nn.Sequential(*network()))
    second.load_state_dict(saved[0][0])
    optimizer = torch.optim.SGD(second.parameters(), 0.1, momentum=0.9)
    optimizer.load_state_dict(saved[0][1])
    train(second, optimizer, batches[3:])
    for one, two in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)
        agree(two)
