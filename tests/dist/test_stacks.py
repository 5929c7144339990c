"""Objects between ranks, and gradients through remote calls."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel

from dist.pool import ranks
from dist.worker import place


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


def twice(tensor):
    return 2 * tensor


@pytest.fixture
def meeting(tmp_path):
    return f"file://{tmp_path}/meeting"


@ranks(2)
def test_data_parallel_model_between_remote_calls(meeting):
    """DDP reduces the gradients that distributed autograd collects, whose ends are other ranks."""
    here = place()
    rpc.init_rpc(
        f"rank{here.rank}",
        rank=here.rank,
        world_size=here.world,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=meeting, _transports=["uv"], rpc_timeout=10
        ),
    )
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    model = DistributedDataParallel(layer)
    own = torch.full((4, 3), here.rank + 1.0, requires_grad=True)
    other = f"rank{1 - here.rank}"
    with dist_autograd.context() as context:
        loss = rpc.rpc_sync(other, twice, (model(rpc.rpc_sync(other, twice, (own,))),)).sum()
        dist_autograd.backward(context, [loss])
        gradients = dist_autograd.get_gradients(context)
        # Each of four rows adds 2 x its input, which is 2 x (rank + 1): 8 x 2 x 1.5 in the mean.
        assert torch.equal(gradients[layer.weight], torch.full((2, 3), 24.0))
        assert torch.equal(gradients[layer.bias], torch.full((2,), 8.0))
        expected = 4 * layer.weight.detach().sum(0).expand(4, 3)
        torch.testing.assert_close(gradients[own], expected)
        dist.barrier()
    rpc.shutdown()
