"""The few that show a build works; the rest of the suite goes into depth."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import agree, place

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("count", [5, 1_000_003])
@ranks(2)
def test_all_reduce(count):
    tensor = torch.arange(count, dtype=torch.float64) * (place().rank + 1)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.arange(count, dtype=torch.float64) * 3)
    agree(tensor)


@ranks(2)
def test_all_gather():
    outputs = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(outputs, torch.full((2,), float(place().rank)))
    assert [output.tolist() for output in outputs] == [[0.0] * 2, [1.0] * 2]


@ranks(2)
def test_broadcast_and_barrier():
    tensor = torch.tensor([float(place().rank)])
    dist.broadcast(tensor, 1)
    dist.barrier()
    assert tensor.item() == 1.0


@ranks(2, backend=None)
def test_by_name_with_default_options():
    here = place()
    dist.init_process_group("ringcomm", store=here.store, rank=here.rank, world_size=here.world)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.tolist() == [1.0] * 3
    dist.destroy_process_group()
