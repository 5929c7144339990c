"""What torch promises of its collectives on the process group itself: results through Futures."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.references import BITWISE, assert_reduced, inputs, reduce_op
from dist.worker import agree, place
from dist.wrong import raw

OPS = ("SUM", "PRODUCT", "MIN", "MAX", *BITWISE)
LAYOUTS = {
    "plain": lambda tensor: tensor.clone(),
    "column": lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0],
}


def rooted(kind, root, **fields):
    options = kind()
    options.rootRank = root
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def value_of(work):
    """Of the work's Future; it is the list of the caller's own tensors."""
    future = work.get_future()
    waited = future.wait()
    value = future.value()
    assert all(one is two or torch.equal(one, two) for one, two in zip(waited, value, strict=True))
    return value


@ranks(2)
def test_empty_tensor_is_broadcast():
    empty = torch.empty(0)
    (result,) = value_of(raw().broadcast([empty], rooted(dist.BroadcastOptions, 0)))
    assert result.numel() == 0
    assert result.data_ptr() == empty.data_ptr()


@pytest.mark.parametrize("layout", LAYOUTS)
@ranks(1, 2, 4)
def test_broadcast_from_every_root(layout):
    here = place()
    for root in range(here.world):
        mine = LAYOUTS[layout](torch.tensor([here.rank, 7 * here.rank]))
        (result,) = value_of(raw().broadcast([mine], rooted(dist.BroadcastOptions, root)))
        assert result.tolist() == [root, 7 * root]
        assert mine.tolist() == [root, 7 * root]


@pytest.mark.parametrize("op", OPS)
@ranks(2, 4)
def test_all_reduce_and_reduce_with_every_op(op):
    here = place()
    dtype = "int64" if op in BITWISE else "float32"
    parts = inputs(dtype, op, here.world, 5)
    options = dist.AllreduceOptions()
    options.reduceOp = reduce_op(op)
    (result,) = value_of(raw().allreduce([parts[here.rank].clone()], options))
    assert_reduced(result, parts, op)
    agree(result)
    for root in range(here.world):
        mine = parts[here.rank].clone()
        call = rooted(dist.ReduceOptions, root, reduceOp=reduce_op(op))
        (result,) = value_of(raw().reduce([mine], call))
        if root == here.rank:
            assert_reduced(result, parts, op)


@ranks(2, 4)
def test_bitwise_with_and_without_common_bits():
    """Each rank adds one bit to those that all have; XOR keeps the common ones if ranks are odd."""
    here = place()
    for common in (0, 0b1111 << here.world):
        mine = common | 1 << here.rank
        every = (1 << here.world) - 1
        odd = common if here.world % 2 else 0
        for op, expected in (("BAND", common), ("BOR", common | every), ("BXOR", odd | every)):
            tensor = torch.tensor([mine])
            dist.all_reduce(tensor, reduce_op(op))
            assert tensor.item() == expected


@ranks(2, 4)
def test_float16_sums_as_near_as_the_sum_in_order_of_ranks():
    """Of values near the largest float16, whose sum in float16 is added in order of ranks."""
    here = place()
    random = torch.Generator().manual_seed(here.rank)
    values = (torch.rand(1000, generator=random) * 2 - 1) * 65504 / here.world
    mine = values.half()
    gathered = value_of(raw().allgather([[mine.clone() for _ in range(here.world)]], [mine]))
    exact = torch.stack(gathered).double().sum(0)
    (result,) = value_of(raw().allreduce([mine]))
    in_order = torch.stack(gathered).sum(0)  # torch adds float16 in float32
    assert torch.isfinite(result).all()
    bound = torch.stack(gathered).double().abs().sum(0) * (here.world - 1) * 2.0**-11
    assert ((result.double() - exact).abs() <= bound).all()
    if here.world == 2:
        assert torch.equal(result, in_order)


@pytest.mark.parametrize("layout", LAYOUTS)
@ranks(2, 4)
def test_all_gather_gather_and_scatter(layout):
    here = place()
    arrange = LAYOUTS[layout]

    def blank():
        return [arrange(torch.tensor([-1])) for _ in range(here.world)]

    mine = arrange(torch.tensor([here.rank]))
    gathered = value_of(raw().allgather([blank()], [mine]))
    assert [tensor.item() for tensor in gathered] == list(range(here.world))
    works = []
    for root in range(here.world):
        outputs = [blank()] if root == here.rank else []
        works.append(raw().gather(outputs, [mine], rooted(dist.GatherOptions, root)))
    for root, work in enumerate(works):
        expected = list(range(here.world)) if root == here.rank else []
        assert [tensor.item() for tensor in value_of(work)] == expected
    outputs, works = blank(), []
    given = [arrange(torch.tensor([10 * here.rank + to])) for to in range(here.world)]
    for root in range(here.world):
        parts = [given] if root == here.rank else []
        call = rooted(dist.ScatterOptions, root)
        works.append(raw().scatter([outputs[root]], parts, call))
    for root, work in enumerate(works):
        assert value_of(work)[0].item() == 10 * root + here.rank


@pytest.mark.parametrize("layout", LAYOUTS)
@ranks(2)
def test_all_gather_in_inference_mode(layout):
    here = place()
    with torch.inference_mode():
        mine = LAYOUTS[layout](torch.tensor([3 * here.rank]))
        outputs = [LAYOUTS[layout](torch.tensor([-1])) for _ in range(here.world)]
        value = value_of(raw().allgather([outputs], [mine]))
    assert [tensor.item() for tensor in value] == [0, 3]
    assert [tensor.item() for tensor in outputs] == [0, 3]


@ranks(1, 2, 4)
def test_reduce_scatter_of_parts_as_long_as_the_rank():
    here = place()
    parts = [torch.arange(float(rank)) + 1 for rank in range(here.world)]
    output = torch.empty(here.rank)
    dist.reduce_scatter(output, parts, async_op=True).wait()
    assert torch.equal(output, parts[here.rank] * here.world)


@ranks(2, 4)
def test_coalesced_calls_of_matrices():
    here = place()
    shapes = [(5, 5), (10, 10), (15, 15)]
    mine = [torch.full(shape, float(here.rank)) for shape in shapes]
    gathered = [torch.empty(here.world * rows, columns) for rows, columns in shapes]
    dist.group.WORLD.allgather_into_tensor_coalesced(gathered, mine).wait()
    for output, (rows, _) in zip(gathered, shapes, strict=True):
        for rank in range(here.world):
            assert (output[rank * rows : (rank + 1) * rows] == rank).all()
    outputs = [torch.empty(shape) for shape in shapes]
    dist.group.WORLD.reduce_scatter_tensor_coalesced(outputs, gathered).wait()
    for output in outputs:
        assert (output == here.rank * here.world).all()


@ranks(2, 4)
def test_futures_of_asynchronous_coalesced_calls():
    here = place()
    sums = [[torch.tensor([step + here.rank]) for _ in range(2)] for step in range(3)]
    futures = [dist.all_reduce_coalesced(tensors, async_op=True) for tensors in sums]
    torch.futures.wait_all(futures)
    for step, future in enumerate(futures):
        expected = step * here.world + sum(range(here.world))
        assert [tensor.item() for tensor in future.wait()] == [expected] * 2
    mine = [torch.tensor([here.rank]), torch.tensor([10 * here.rank, 1])]
    outputs = [[torch.zeros_like(tensor) for tensor in mine] for _ in range(here.world)]
    torch.futures.wait_all([dist.all_gather_coalesced(outputs, mine, async_op=True)])
    for rank, (first, second) in enumerate(outputs):
        assert first.tolist() == [rank]
        assert second.tolist() == [10 * rank, 1]


@pytest.mark.parametrize(
    ("shape", "sparse_dim"),
    [((4,), 1), ((4, 3), 1), ((4, 3), 2), ((4, 3, 2), 1), ((4, 3, 2), 2), ((4, 3, 2), 3)],
)
@ranks(2, 4)
def test_sparse_sums_of_mixed_dimensions(shape, sparse_dim):
    """Rank r has r + 1 non-zeros in its first rows, so that ranks differ and meet."""
    here = place()

    def part(rank):
        dense = torch.zeros(shape)
        dense[: rank + 1] = rank + 1.0
        return dense.to_sparse(sparse_dim)

    mine = part(here.rank)
    (result,) = value_of(raw().allreduce([mine]))
    expected = sum(part(rank).to_dense() for rank in range(here.world))
    for sums in (mine, result):
        assert torch.equal(sums.to_dense(), expected)


@ranks(4)
def test_every_rank_sends_to_all_before_it_receives():
    here = place()
    others = [rank for rank in range(here.world) if rank != here.rank]
    sends = [raw().send([torch.tensor([10 * here.rank + to])], to, 0) for to in others]
    outputs = [torch.tensor([-1]) for _ in others]
    receives = [raw().recv([out], of, 0) for of, out in zip(others, outputs, strict=True)]
    for work in [*sends, *receives]:
        work.wait()
        assert work.is_completed()
    assert [output.item() for output in outputs] == [10 * of + here.rank for of in others]


@ranks(2, 4)
def test_barrier_waits_for_works_without_a_handle():
    tensors = [torch.full((100, 100), float(number)) for number in range(16)]
    for tensor in tensors:
        raw().allreduce([tensor])
    raw().barrier().get_future().wait()
    for number, tensor in enumerate(tensors):
        assert (tensor == number * place().world).all()


@pytest.mark.parametrize("kind", ["strided", "sparse"])
@ranks(2)
def test_barrier_waits_for_results_that_are_copied_back(kind):
    """Of works that nobody holds; the copy takes longer than the barrier's own message."""
    for _ in range(3):
        tensor = (
            torch.ones(4_000_000, 2)[:, 0] if kind == "strided" else torch.eye(2000).to_sparse()
        )
        dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        assert ((tensor.values() if kind == "sparse" else tensor) == 2).all()


@ranks(2)
def test_transposed_tensors_are_refused_by_all_to_all():
    with pytest.raises(ValueError, match="Tensors must be contiguous"):
        dist.all_to_all_single(torch.empty(2, 4), torch.ones(4, 2).t())


@ranks(2)
def test_memory_that_processes_share():
    tensor = torch.full((1000,), float(place().rank + 1)).share_memory_()
    before = tensor.data_ptr()
    dist.all_reduce(tensor)
    assert tensor.is_shared()
    assert tensor.data_ptr() == before
    assert (tensor == 3).all()
