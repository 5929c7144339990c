"""all_reduce of sparse tensors: sums of different non-zeros, in the caller's own tensor."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringcomm
from dist.pool import ranks
from dist.worker import agree, group, place
from dist.wrong import assert_refused, raw


def sparse_part(rank, shape, density, dtype=torch.float64, sparse_dim=None):
    """Whole numbers, so that every order of adding gives the same."""
    generator = torch.Generator().manual_seed(rank + 1)
    dense = torch.randint(-9, 10, shape, generator=generator).to(dtype)
    sparse_dim = len(shape) if sparse_dim is None else sparse_dim
    kept = torch.rand(shape[:sparse_dim], generator=generator) < density
    kept = kept.view(kept.shape + (1,) * (len(shape) - sparse_dim))
    return (dense * kept).to_sparse(sparse_dim)


def check(shape, densities, async_op=False, **kind):
    here = place()
    parts = [sparse_part(rank, shape, densities[rank], **kind) for rank in range(here.world)]
    tensor = parts[here.rank].clone()
    work = dist.all_reduce(tensor, async_op=async_op)
    if async_op:
        work.wait()
    expected = torch.stack([part.to_dense() for part in parts]).sum(0).to(tensor.dtype)
    assert tensor.is_sparse
    assert tensor.is_coalesced()
    assert torch.equal(tensor.to_dense(), expected)
    agree(tensor.indices())
    agree(tensor.values())


@pytest.mark.parametrize("async_op", [False, True])
@ranks(1, 2, 3, 5)
def test_sums(async_op):
    world = place().world
    check((50, 7), [0.3] * world, async_op)
    check((5000,), [0.1 * rank for rank in range(world)], async_op)
    check((3,), [0.0] * world, async_op)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int64"])
@ranks(2, 3)
def test_dtypes(dtype):
    check((40,), [0.5] * place().world, dtype=getattr(torch, dtype))


@pytest.mark.parametrize("sparse_dim", [1, 2])
@ranks(2, 3)
def test_dense_dimensions(sparse_dim):
    check((30, 4, 5), [0.4] * place().world, sparse_dim=sparse_dim)


@ranks(2)
def test_large():
    check((400, 1000), [0.5, 0.9])


@ranks(3, backend=None)
def test_options():
    with group(pg_options=ringcomm.Options(lanes=3, slice_bytes=4096)):
        check((400, 300), [0.5, 0.0, 1.0])


@ranks(2)
def test_uncoalesced():
    """Indices that occur twice are sums of their values."""
    here = place()
    indices = torch.tensor([[1, 1, here.rank]])
    tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 4.0]), (3,))
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [4.0, 10.0, 0.0]


@ranks(2)
def test_works_beside_dense_ones():
    here = place()
    dense = torch.ones(1000)
    first = dist.all_reduce(dense, async_op=True)
    tensor = sparse_part(here.rank, (100,), 0.5)
    second = dist.all_reduce(tensor, async_op=True)
    other = torch.ones(10)
    dist.all_reduce(other)
    first.wait()
    second.wait()
    expected = sparse_part(0, (100,), 0.5).to_dense() + sparse_part(1, (100,), 0.5).to_dense()
    assert torch.equal(tensor.to_dense(), expected)
    assert (dense == 2).all()
    assert (other == 2).all()


@pytest.mark.parametrize("op", ["AVG", "MAX", "PRODUCT"])
@ranks(2)
def test_only_sums_are_defined(op):
    assert_refused(
        lambda: dist.all_reduce(torch.eye(3).to_sparse(), getattr(dist.ReduceOp, op)),
        r"all_reduce: .*only SUM.*sparse",
    )


@ranks(2)
def test_other_sparse_layouts_are_refused():
    assert_refused(
        lambda: raw().allreduce([torch.eye(3).to_sparse_csr()]), r"all_reduce: .*layout.*[Cc]sr"
    )


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 4, sparse=True)
        self.out = nn.Linear(4, 1)

    def forward(self, words):
        return self.out(self.table(words)).sum()


def train(model, words):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(words[step]).backward()
        optimizer.step()


@ranks(2)
def test_ddp_with_sparse_gradients_trains_as_on_gloo():
    here = place()
    words = torch.randint(0, 20, (3, 6), generator=torch.Generator().manual_seed(here.rank))
    results = []
    for backend in ("ringcomm", "gloo"):
        one = dist.new_group(backend=backend)
        torch.manual_seed(3)
        model = DistributedDataParallel(Words(), process_group=one)
        train(model, words)
        results.append([tensor.detach().clone() for tensor in model.module.parameters()])
        del model
        dist.destroy_process_group(one)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
        agree(ours)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@ranks(2, 3)
def test_complex(dtype, async_op):
    """torch hands complex tensors on as views of real ones."""
    here = place()
    shape, densities = (40, 3), [0.5, 0.0, 0.9]
    parts = []
    for rank in range(here.world):
        real = sparse_part(rank, shape, densities[rank]).to_dense()
        parts.append(torch.complex(real, 2 * real + (real != 0)).to(dtype))
    tensor = parts[here.rank].to_sparse()
    work = dist.all_reduce(tensor, async_op=async_op)
    if async_op:
        work.wait()
    assert tensor.is_sparse
    assert tensor.dtype == dtype
    assert torch.equal(tensor.to_dense(), torch.stack(parts).sum(0))


@ranks(2)
def test_complex_that_the_backend_is_given_itself():
    tensor = torch.sparse_coo_tensor([[place().rank, 2]], torch.tensor([1 + 2j, 3j]), (4,))
    raw().allreduce([tensor]).wait()
    assert tensor.to_dense().tolist() == [1 + 2j, 1 + 2j, 6j, 0j]
