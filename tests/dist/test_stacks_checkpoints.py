"""Distributed checkpoints: written by some ranks, read by others, in other layouts, meanwhile."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from dist.pool import ranks
from dist.training import adam, network, train_on_ranks
from dist.worker import agree, place


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


def sharded():
    """A sharded network with its optimizer."""
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (place().world,)))
    return model, adam(model.parameters())


@ranks(2)
def test_saving_while_training_goes_on(folder):
    """What is loaded is the state at the call, and training ends as if nothing had been saved."""
    model, optimizer = sharded()
    train_on_ranks(model, optimizer)
    parameters, states = get_state_dict(model, optimizer)
    apart = dist.new_group()  # the save's collectives come at a time of their own
    at_the_call = [tensor.full_tensor() for tensor in model.parameters()]
    saving = dcp.async_save(
        {"model": parameters, "optimizer": states},
        checkpoint_id=folder,
        process_group=apart,
    )
    train_on_ranks(model, optimizer)
    saving.result(timeout=20)
    after = [tensor.full_tensor() for tensor in model.parameters()]

    other, other_optimizer = sharded()
    parameters, states = get_state_dict(other, other_optimizer)
    loaded = {"model": parameters, "optimizer": states}
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(
        other, other_optimizer, model_state_dict=parameters, optim_state_dict=loaded["optimizer"]
    )
    for ours, saved in zip(other.parameters(), at_the_call, strict=True):
        assert torch.equal(ours.full_tensor(), saved)
    train_on_ranks(other, other_optimizer)  # with the optimizer's state, to the same end
    for ours, expected in zip(other.parameters(), after, strict=True):
        assert torch.equal(ours.full_tensor(), expected)


@ranks(3)
def test_whole_state_on_one_rank_and_back():
    here = place()
    model, optimizer = sharded()
    train_on_ranks(model, optimizer)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=options)
    assert (len(whole) > 0) == (here.rank == 0)
    other, _ = sharded()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, whole, options=options)
    for ours, expected in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.full_tensor(), expected.full_tensor())
        agree(ours.full_tensor())
