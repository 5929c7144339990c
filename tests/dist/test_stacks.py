"""What stands on the collectives: FSDP2, DTensor, device meshes, pipelines, checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from dist.pool import ranks
from dist.worker import agree, place


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 3)
    )


def batches(world, steps=3):
    """Every rank's inputs and targets of every step."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(steps, world, 4, 6, generator=generator), torch.randn(
        steps, world, 4, 3, generator=generator
    )


def train_alone(make_optimizer, world, steps=3):
    """One process that has all ranks' data: what the others have to come to."""
    model = network()
    optimizer = make_optimizer(model.parameters())
    inputs, targets = batches(world, steps)
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(
            model(inputs[step].flatten(0, 1)), targets[step].flatten(0, 1)
        ).backward()
        optimizer.step()
    return list(model.parameters())


def train_on_ranks(model, optimizer, steps=3):
    here = place()
    inputs, targets = batches(here.world, steps)
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[step, here.rank]), targets[step, here.rank]).backward()
        optimizer.step()


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


@pytest.mark.parametrize("reshard", [True, False])
@ranks(2, 3)
def test_fully_shard_trains_as_one_process(reshard):
    here = place()
    mesh = init_device_mesh("cpu", (here.world,))
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    train_on_ranks(model, adam(model.parameters()))
    for ours, alone in zip(model.parameters(), train_alone(adam, here.world), strict=True):
        whole = ours.full_tensor()
        torch.testing.assert_close(whole, alone, rtol=1e-5, atol=1e-6)
        agree(whole)


@ranks(4)
def test_hybrid_sharding_on_a_mesh_of_two_dimensions():
    here = place()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = network()
    fully_shard(model, mesh=mesh)
    train_on_ranks(model, adam(model.parameters()))
    for ours, alone in zip(model.parameters(), train_alone(adam, here.world), strict=True):
        torch.testing.assert_close(ours.full_tensor(), alone, rtol=1e-5, atol=1e-6)


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


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


@ranks(2)
def test_checkpoint_of_sharded_tensors(folder):
    here = place()
    mesh = init_device_mesh("cpu", (here.world,))
    whole = torch.arange(40.0).view(8, 5)
    state = {"weight": distribute_tensor(whole, mesh, [Shard(0)]), "steps": 7}
    dcp.save(state, checkpoint_id=folder)
    loaded = {
        "weight": distribute_tensor(torch.zeros(8, 5), mesh, [Shard(1)]),  # another layout
        "steps": 0,
    }
    dcp.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["weight"].full_tensor(), whole)
    assert loaded["steps"] == 7


@ranks(3)
def test_object_collectives():
    here = place()
    mine = {"rank": here.rank, "text": "x" * (1000 * here.rank)}
    everything = [None] * 3
    dist.all_gather_object(everything, mine)
    assert [one["rank"] for one in everything] == [0, 1, 2]
    kept = copy.deepcopy(everything) if here.rank == 2 else [None] * 3
    dist.broadcast_object_list(kept, src=2)
    assert kept == everything
    got = [None]
    dist.scatter_object_list(got, everything if here.rank == 1 else None, src=1)
    assert got == [mine]
    assert dist.get_rank() == here.rank


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@ranks(2)
def test_pipeline_trains_as_one_process(schedule):
    here = place()
    reference = network()
    parts = [copy.deepcopy(reference)[:2], copy.deepcopy(reference)[2:]]
    stage = PipelineStage(parts[here.rank], here.rank, 2, torch.device("cpu"))
    pipeline = schedule(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(16, 6, generator=generator)
    targets = torch.randn(16, 3, generator=generator)
    for _ in range(2):
        reference.zero_grad()
        parts[here.rank].zero_grad()
        loss = nn.functional.mse_loss(reference(inputs), targets)
        loss.backward()
        if here.rank == 0:
            pipeline.step(inputs)
        else:
            losses = []
            pipeline.step(target=targets, losses=losses)
            torch.testing.assert_close(torch.stack(losses).mean(), loss)
        own = (reference[:2], reference[2:])[here.rank]
        for ours, alone in zip(parts[here.rank].parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, alone.grad, rtol=1e-4, atol=1e-6)
