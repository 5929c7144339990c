"""Sharded data parallelism, both generations of it, comes to what one process comes to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from dist.pool import ranks
from dist.training import adam, assert_trained, batches, network, train_on_ranks
from dist.worker import agree, place


def sharded(mesh, **arguments):
    """The network, each layer sharded, and what is left."""
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **arguments)
    return fully_shard(model, mesh=mesh, **arguments)


@pytest.mark.parametrize("reshard", [True, False])
@ranks(2, 3)
def test_fully_shard(reshard):
    model = sharded(init_device_mesh("cpu", (place().world,)), reshard_after_forward=reshard)
    train_on_ranks(model, adam(model.parameters()))
    whole = [tensor.full_tensor() for tensor in model.parameters()]
    assert_trained(whole)
    agree(torch.cat([tensor.flatten() for tensor in whole]))


@ranks(4)
def test_fully_shard_on_a_mesh_of_two_dimensions():
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    train_on_ranks(model, adam(model.parameters()))
    assert_trained([tensor.full_tensor() for tensor in model.parameters()])


def sum_of_gradients(world):
    """Over the ranks, of their own mean losses on the first step's data."""
    model = network()
    inputs, targets = batches(world)
    for rank in range(world):
        nn.functional.mse_loss(model(inputs[0, rank]), targets[0, rank]).backward()
    return [tensor.grad for tensor in model.parameters()]


def backward_on_ranks(model):
    here = place()
    inputs, targets = batches(here.world)
    nn.functional.mse_loss(model(inputs[0, here.rank]), targets[0, here.rank]).backward()


@pytest.mark.parametrize("forced_sum", [False, True])
@pytest.mark.parametrize("factor", [None, 2.0, 7.0])
@ranks(2, 3)
def test_divisors_of_gradients(factor, forced_sum):
    """By default AVG; the number of ranks too; any other is a PREMUL_SUM, unless SUM is forced."""
    world = place().world
    model = sharded(init_device_mesh("cpu", (world,)))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Sequential):
            if factor is not None:
                module.set_gradient_divide_factor(factor)
            module.set_force_sum_reduction_for_comms(forced_sum)
    backward_on_ranks(model)
    for ours, total in zip(model.parameters(), sum_of_gradients(world), strict=True):
        expected = total / (world if factor is None else factor)
        torch.testing.assert_close(ours.grad.full_tensor(), expected, rtol=1e-5, atol=1e-7)


@ranks(4)
def test_divisor_of_gradients_on_a_mesh_of_two_dimensions():
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Sequential):
            module.set_gradient_divide_factor(8.0)
    backward_on_ranks(model)
    for ours, total in zip(model.parameters(), sum_of_gradients(4), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), total / 8, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reduce", [torch.float32, torch.bfloat16, torch.float16])
@ranks(2)
def test_fully_shard_in_mixed_precision(reduce):
    """Parameters travel as bfloat16, gradients in what is asked for; sums are of that precision."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    model = sharded(init_device_mesh("cpu", (2,)), mp_policy=policy)
    backward_on_ranks(model)
    for ours, total in zip(model.parameters(), sum_of_gradients(2), strict=True):
        assert ours.grad.dtype == torch.float32
        torch.testing.assert_close(ours.grad.full_tensor(), total / 2, rtol=0.05, atol=0.01)


@ranks(2)
def test_fully_shard_accumulates_without_synchronisation_and_clips():
    model = sharded(init_device_mesh("cpu", (2,)))
    model.set_requires_gradient_sync(False)
    backward_on_ranks(model)
    model.set_requires_gradient_sync(True)
    backward_on_ranks(model)
    expected = sum_of_gradients(2)
    norm = torch.cat([total.flatten() for total in expected]).norm()
    ours = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5 * float(norm))
    torch.testing.assert_close(ours.full_tensor(), norm, rtol=1e-5, atol=1e-6)
    for tensor, total in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(tensor.grad.full_tensor(), total / 2, rtol=1e-4, atol=1e-6)


def wrapped(strategy, mesh=None, **arguments):
    return FullyShardedDataParallel(
        network(),
        sharding_strategy=getattr(ShardingStrategy, strategy),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_mesh=mesh,
        device_id=torch.device("cpu"),
        **arguments,
    )


@pytest.mark.parametrize("original", [False, True], ids=["flat", "original"])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
@ranks(2)
def test_first_generation(strategy, original):
    model = wrapped(strategy, use_orig_params=original)
    train_on_ranks(model, adam(model.parameters()))
    with FullyShardedDataParallel.summon_full_params(model):
        assert_trained([tensor.clone() for tensor in model.parameters()])


@pytest.mark.parametrize("strategy", ["HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"])
@ranks(4)
def test_first_generation_on_a_mesh_of_two_dimensions(strategy):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = wrapped(strategy, mesh)
    train_on_ranks(model, adam(model.parameters()))
    with FullyShardedDataParallel.summon_full_params(model):
        assert_trained([tensor.clone() for tensor in model.parameters()])


@ranks(2)
def test_first_generation_accumulates_and_clips():
    model = wrapped("FULL_SHARD", use_orig_params=True)
    with model.no_sync():
        backward_on_ranks(model)
    backward_on_ranks(model)
    expected = torch.cat([total.flatten() for total in sum_of_gradients(2)]).norm()
    norm = model.clip_grad_norm_(max_norm=0.5 * float(expected))
    torch.testing.assert_close(norm, expected, rtol=1e-5, atol=1e-6)
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        for tensor, total in zip(model.parameters(), sum_of_gradients(2), strict=True):
            torch.testing.assert_close(tensor.grad, total / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@ranks(2)
def test_first_generation_in_mixed_precision(dtype):
    precision = MixedPrecision(param_dtype=dtype, reduce_dtype=dtype)
    model = wrapped("FULL_SHARD", mixed_precision=precision, use_orig_params=True)
    backward_on_ranks(model)
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        for tensor, total in zip(model.parameters(), sum_of_gradients(2), strict=True):
            torch.testing.assert_close(tensor.grad, total / 2, rtol=0.05, atol=0.01)
