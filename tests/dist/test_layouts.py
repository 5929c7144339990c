"""Tensors of every layout: what is not contiguous is handled rightly or refused clearly."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import agree, place

# Views of 24 elements or so of a base tensor; what lies between them must stay as it was.
VIEWS = {
    "contiguous": lambda base: base[:24].view(4, 6),
    "offset": lambda base: base[5:29],
    "unaligned": lambda base: base.view(torch.uint8)[3:27],
    "strided": lambda base: base[::3],
    "column": lambda base: base[:60].view(10, 6)[:, 2],
    "transposed": lambda base: base[:24].view(4, 6).t(),
    "channels_last": lambda base: base[:48].view(2, 2, 3, 4).permute(0, 3, 1, 2),
    "block": lambda base: base[:60].view(10, 6)[2:5, 1:4],
    "scalar": lambda base: base[7],
    "empty": lambda base: base[:0].view(0, 3),
    "singleton": lambda base: base[3:4].view(1, 1, 1),
}


def base_and_view(layout, value):
    base = torch.arange(100, dtype=torch.int32) + 1000 * value
    return base, VIEWS[layout](base)


def outside(layout):
    """Which elements of the base do not belong to the view."""
    base = torch.zeros(100, dtype=torch.int32)
    VIEWS[layout](base).fill_(1)
    return base == 0


@pytest.mark.parametrize("layout", VIEWS)
@ranks(2, 3)
def test_all_reduce(layout):
    here = place()
    base, view = base_and_view(layout, here.rank)
    everybody = [base_and_view(layout, rank) for rank in range(here.world)]
    untouched = outside(layout)
    before, pointer, strides = base.clone(), view.data_ptr(), view.stride()
    dist.all_reduce(view)
    expected = torch.stack([other for _, other in everybody]).sum(0).to(view.dtype)
    assert torch.equal(view, expected)
    assert (view.data_ptr(), view.stride()) == (pointer, strides)
    assert torch.equal(base[untouched], before[untouched])
    agree(view)


@pytest.mark.parametrize("layout", VIEWS)
@ranks(3)
def test_broadcast(layout):
    here = place()
    base, view = base_and_view(layout, here.rank)
    untouched, before = outside(layout), base.clone()
    dist.broadcast(view, 1)
    assert torch.equal(view, base_and_view(layout, 1)[1])
    assert torch.equal(base[untouched], before[untouched])


@pytest.mark.parametrize("layout", VIEWS)
@ranks(3)
def test_all_gather(layout):
    here = place()
    _, view = base_and_view(layout, here.rank)
    bases = [base_and_view(layout, 90 + rank) for rank in range(here.world)]
    untouched = outside(layout)
    befores = [base.clone() for base, _ in bases]
    dist.all_gather([output for _, output in bases], view)
    for rank, (base, output) in enumerate(bases):
        assert torch.equal(output, base_and_view(layout, rank)[1])
        assert torch.equal(base[untouched], befores[rank][untouched])


@pytest.mark.parametrize("layout", VIEWS)
@ranks(2)
def test_all_gather_into_tensor(layout):
    here = place()
    _, view = base_and_view(layout, here.rank)
    wide = torch.full((here.world, *view.shape, 2), -1, dtype=view.dtype)
    output = wide[..., 0]
    dist.all_gather_into_tensor(output, view)
    for rank in range(here.world):
        assert torch.equal(output[rank], base_and_view(layout, rank)[1])
    assert (wide[..., 1] == torch.full_like(wide[..., 1], -1)).all()


@ranks(2)
def test_layouts_may_differ_between_ranks():
    here = place()
    tensor = torch.arange(12.0).view(3, 4)
    if here.rank == 1:
        tensor = torch.arange(12.0).view(3, 4).t().contiguous().t()  # equal, but column by column
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.arange(12.0).view(3, 4) * 2)


@ranks(2)
def test_expanded_tensor_as_source():
    here = place()
    expanded = torch.tensor([[1.0], [2.0]]).expand(2, 3) * 1.0 + here.rank
    source = torch.tensor([[1.0 + here.rank], [2.0]]).expand(2, 3)
    gathered = torch.zeros(2, 2, 3)
    dist.all_gather_into_tensor(gathered, source)
    assert gathered[0].tolist() == [[1.0] * 3, [2.0] * 3]
    assert gathered[1].tolist() == [[2.0] * 3, [2.0] * 3]
    tensor = source if here.rank == 0 else expanded
    dist.broadcast(tensor, 0)
    assert tensor.tolist() == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("collective", ["all_reduce", "coalesced", "broadcast", "gather", "into"])
@ranks(2)
def test_overlapping_destination_is_refused_before_anything_is_sent(collective):
    """Several elements at one address have no right value. The group goes on after the refusal."""
    here = place()
    tensor = torch.ones(1).expand(4)
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "coalesced": lambda: dist.all_reduce_coalesced([torch.ones(2), tensor]),
        "broadcast": lambda: dist.broadcast(tensor, 1 - here.rank),
        "gather": lambda: dist.all_gather([torch.ones(4), tensor], torch.ones(4)),
        "into": lambda: dist.all_gather_into_tensor(torch.ones(1).expand(8), torch.ones(4)),
    }
    with pytest.raises(ValueError, match=r"ringcomm: .*overlap"):
        calls[collective]()
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [2.0] * 3


@pytest.mark.parametrize("strided", [False, True])
@ranks(2)
def test_leaf_that_requires_grad(strided):
    leaf = (torch.ones(6, 2)[:, 0] if strided else torch.ones(6)).requires_grad_()
    dist.all_reduce(leaf)
    dist.broadcast(leaf, 0)
    dist.all_reduce_coalesced([leaf])
    assert leaf.requires_grad
    assert leaf.is_leaf
    assert leaf.tolist() == [4.0] * 6
    outputs = [torch.zeros(6, requires_grad=True) for _ in range(2)]
    dist.all_gather(outputs, leaf)
    assert outputs[1].tolist() == [4.0] * 6
    outputs[0].sum().backward()
    assert outputs[0].grad is not None


@pytest.mark.parametrize("strided", [False, True])
@ranks(2)
def test_inference_mode(strided):
    with torch.inference_mode():
        tensor = torch.ones(6, 2)[:, 0] if strided else torch.ones(6)
        dist.all_reduce(tensor)
        assert tensor.is_inference()
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        dist.all_reduce_coalesced([tensor])
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        assert tensor.tolist() == [8.0] * 6


@ranks(2)
def test_inference_tensor_outside_of_inference_mode():
    with torch.inference_mode():
        tensor = torch.ones(6, 2)[:, 0]
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 6


@ranks(2)
def test_views_that_negate_or_conjugate():
    """Their memory holds other elements. dist.all_reduce would hand the backend a copy."""
    here = place()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    negated = torch._neg_view(torch.full((3,), 2.0))
    backend.allreduce([negated]).wait()
    assert negated.tolist() == [-4.0] * 3
    gathered = torch.zeros(6, dtype=torch.complex64)
    source = torch.full((3,), 1 + 2j * (here.rank + 1)).conj()
    backend._allgather_base(gathered, source).wait()
    assert gathered.tolist() == [1 - 2j] * 3 + [1 - 4j] * 3
    whole = torch.zeros(6)
    dist.all_gather_into_tensor(whole, negated)
    assert whole.tolist() == [-4.0] * 6
