"""all_reduce: every dtype and op, sizes and algorithms, against references computed apart."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.references import DTYPES, OPS, assert_reduced, defined, inputs, reduce_op
from dist.worker import agree, group, place

WORLDS = (1, 2, 3, 4, 5, 8)
COUNT = 1003  # blocks of unequal sizes for every world
ALGORITHMS = ("direct", "scatter-gather", "ring")
DEFINED = [(dtype, op) for dtype in DTYPES for op in OPS if defined(dtype, op)]
UNDEFINED = [(dtype, op) for dtype in DTYPES for op in OPS if not defined(dtype, op)]


def reduced(dtype, op, count, seed=0):
    """The result of one all_reduce, checked."""
    here = place()
    parts = inputs(dtype, op, here.world, count, seed)
    tensor = parts[here.rank].clone()
    assert dist.all_reduce(tensor, reduce_op(op)) is None
    assert_reduced(tensor, parts, op)
    agree(tensor)
    return tensor


@pytest.mark.parametrize(("dtype", "op"), DEFINED)
@ranks(*WORLDS)
def test_dtype_and_op(dtype, op):
    first = reduced(dtype, op, COUNT)
    again = reduced(dtype, op, COUNT)
    assert torch.equal(first, again)


@pytest.mark.parametrize(("dtype", "op"), UNDEFINED)
@ranks(2)
def test_undefined_pair_names_both_and_the_group_goes_on(dtype, op):
    tensor = torch.ones(5).to(getattr(torch, dtype))
    name = {"BAND": "band", "BOR": "bor", "BXOR": "bxor"}.get(op, op.lower())
    torch_name = {"float64": "Double", "float32": "Float", "float16": "Half", "bool": "Bool"}
    before = tensor.clone()
    with pytest.raises(TypeError, match=name) as error:
        dist.all_reduce(tensor, reduce_op(op))
    assert any(text in str(error.value) for text in (dtype, torch_name.get(dtype, ""), "BFloat16"))
    assert torch.equal(tensor, before)
    reduced("float32", "SUM", 10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 63, 16_384, 100_003, 1_500_001])
@ranks(*WORLDS)
def test_size(count, dtype):
    reduced(dtype, "SUM", count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@ranks(2, 3, 5, backend=None)
def test_forced_algorithm(algorithm):
    import ringcomm

    options = ringcomm.Options(algorithms=f"all_reduce={algorithm}")
    with group(pg_options=options):
        for dtype, op in [("float16", "AVG"), ("int64", "BXOR"), ("float64", "MAX")]:
            for count in (0, 1, 4, COUNT, 100_001):
                reduced(dtype, op, count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@ranks(4, backend=None)
def test_sixteen_bits_accumulate_in_float32_within_a_hop(algorithm):
    """A rank that combines several parts at once rounds once: 256 + 1 + 1 + 1 is not 256."""
    import ringcomm

    options = ringcomm.Options(algorithms=f"all_reduce={algorithm}")
    with group(pg_options=options):
        tensor = torch.full((64,), 256.0 if place().rank == 0 else 1.0, dtype=torch.bfloat16)
        dist.all_reduce(tensor)
        agree(tensor)
        if algorithm != "ring":
            assert set(tensor.tolist()) == {260.0}  # 259 rounded to even in bfloat16


@ranks(2, 3, 8)
def test_repeated_runs_are_bitwise_equal():
    here = place()
    for count in (100, 50_000, 700_000):
        part = inputs("float32", "SUM", here.world, count)[here.rank]
        results = []
        for _ in range(3):
            tensor = part.clone()
            dist.all_reduce(tensor)
            results.append(tensor)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
        agree(results[0])


@ranks(3)
def test_extreme_values():
    here = place()
    tensor = torch.tensor([float("inf"), 1.0, 3e38, -0.0, 1e-45])
    if here.rank == 1:
        tensor = torch.tensor([1.0, float("nan"), 3e38, -0.0, 1e-45])
    dist.all_reduce(tensor)
    agree(tensor)
    assert tensor[0] == float("inf")
    assert tensor[1].isnan()
    assert tensor[2] == float("inf")
    assert tensor[3] == 0
    assert tensor[3].signbit()
    assert tensor[4] == torch.tensor(1e-45) * 3


@ranks(2)
def test_float16_average_of_large_values_stays_finite():
    tensor = torch.full((9,), 60000.0, dtype=torch.float16)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.tolist() == [60000.0] * 9


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@ranks(3)
def test_complex_sum(dtype):
    here = place()
    tensor = torch.full((5,), complex(here.rank, 1), dtype=dtype)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3 + 3j] * 5


@ranks(3)
def test_premultiplied_by_a_tensor():
    tensor = torch.full((5,), 2.0)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(torch.tensor([0.5])))
    assert tensor.tolist() == [3.0] * 5


@ranks(2)
def test_premultiplied_by_a_factor_of_each_rank():
    tensor = torch.ones(5, dtype=torch.float64)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(place().rank + 0.25))
    assert tensor.tolist() == [1.5] * 5


@pytest.mark.slow
@pytest.mark.timeout(120)
@ranks(2, timeout=90)
def test_more_than_two_gibibytes():
    here = place()
    count = 2**31 + 4099
    tensor = torch.empty(count, dtype=torch.int8)
    step = 1 << 20
    tensor[: count // step * step].view(-1, step).copy_(torch.arange(count // step)[:, None] % 50)
    tensor[count // step * step :] = 7
    if here.rank == 1:
        tensor += 1
    dist.all_reduce(tensor)
    rows = tensor[: count // step * step].view(-1, step)
    expected = (torch.arange(count // step) % 50 * 2 + 1).to(torch.int8)
    assert torch.equal(rows.amin(1), expected)
    assert torch.equal(rows.amax(1), expected)
    assert (tensor[count // step * step :] == 15).all()


@pytest.mark.parametrize("count", [1, 1000, 40_000])
@ranks(1, 2, 3)
def test_coalesced(count):
    here = place()
    parts = [inputs("float32", "SUM", here.world, count + i, seed=i) for i in range(5)]
    tensors = [part[here.rank].clone() for part in parts]
    tensors[2] = torch.stack([tensors[2], tensors[2]], 1)[:, 0]  # strided
    dist.all_reduce_coalesced(tensors)
    for tensor, part in zip(tensors, parts, strict=True):
        assert_reduced(tensor, part, "SUM")
        agree(tensor)
