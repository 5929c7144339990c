"""Wrong calls on the process group itself, in the words that torch's own backends use."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import place
from dist.wrong import assert_refused, raw

WORLD = 2
ONE = torch.zeros(1)
DOUBLE = torch.zeros(1, dtype=torch.float64)
TWO = torch.zeros(2)
SPARSE = torch.ones(1).to_sparse()


def whole():
    """Torch binds some calls to the process group only, which passes them on."""
    return dist.group.WORLD


def with_root(kind, root, tensor=None):
    options = kind()
    options.rootRank = root
    if tensor is not None:
        options.rootTensor = tensor
    return options


def broadcast(tensors, root, tensor=0):
    return raw().broadcast(tensors, with_root(dist.BroadcastOptions, root, tensor))


def reduce(tensors, root, tensor=0):
    return raw().reduce(tensors, with_root(dist.ReduceOptions, root, tensor))


def gather(outputs, inputs, root):
    return raw().gather(outputs, inputs, with_root(dist.GatherOptions, root))


def scatter(outputs, inputs, root):
    return raw().scatter(outputs, inputs, with_root(dist.ScatterOptions, root))


# Each is called on every rank with the rank itself and the other one.
CALLS = {
    "broadcast-root-negative": (lambda me, _: broadcast([ONE], -1), "invalid root rank"),
    "broadcast-root-large": (lambda me, _: broadcast([ONE], WORLD), "invalid root rank"),
    "broadcast-empty": (lambda me, _: broadcast([], me), "invalid root tensor"),
    "broadcast-types": (lambda me, _: broadcast([ONE, DOUBLE], me), "invalid tensor type"),
    "broadcast-sizes": (lambda me, _: broadcast([ONE, TWO], me), "invalid tensor size"),
    "broadcast-tensor-negative": (lambda me, _: broadcast([ONE], me, -1), "invalid root tensor"),
    "broadcast-tensor-large": (lambda me, _: broadcast([ONE], me, 1), "invalid root tensor"),
    "reduce-root-negative": (lambda me, _: reduce([ONE], -1), "invalid root rank"),
    "reduce-root-large": (lambda me, _: reduce([ONE], WORLD), "invalid root rank"),
    "reduce-tensor": (lambda me, _: reduce([ONE], me, 1), "invalid root tensor"),
    "reduce-two": (
        lambda me, _: reduce([ONE, ONE], me),
        "requires a single-element tensor list",
    ),
    "gather-root-negative": (lambda me, _: gather([], [ONE], -1), "invalid root rank"),
    "gather-root-large": (lambda me, _: gather([], [ONE], WORLD), "invalid root rank"),
    "gather-no-output": (
        lambda me, _: gather([], [ONE], me),
        "requires a single-element output list",
    ),
    "gather-two-outputs": (
        lambda me, _: gather([[ONE] * WORLD] * 2, [ONE], me),
        "requires a single-element output list",
    ),
    "gather-two-inputs": (
        lambda me, _: gather([[ONE] * WORLD], [ONE, ONE], me),
        "requires a single-element input tensor list",
    ),
    "gather-short": (
        lambda me, _: gather([[ONE] * 3], [ONE], me),
        "Incorrect output list size 3. Output list size should be 2",
    ),
    "gather-type": (lambda me, _: gather([[DOUBLE] * WORLD], [ONE], me), "invalid tensor type"),
    "gather-size": (lambda me, _: gather([[TWO] * WORLD], [ONE], me), "invalid tensor size"),
    "gather-elsewhere": (
        lambda me, other: gather([[ONE] * WORLD], [ONE], other),
        "requires empty output on non-root",
    ),
    "scatter-root-negative": (lambda me, _: scatter([ONE], [], -1), "invalid root rank"),
    "scatter-root-large": (lambda me, _: scatter([ONE], [], WORLD), "invalid root rank"),
    "scatter-no-input": (
        lambda me, _: scatter([ONE], [], me),
        "requires a single-element input list",
    ),
    "scatter-two-inputs": (
        lambda me, _: scatter([ONE], [[ONE] * WORLD] * 2, me),
        "requires a single-element input list",
    ),
    "scatter-two-outputs": (
        lambda me, _: scatter([ONE, ONE], [[ONE] * WORLD], me),
        "requires a single-element output tensor list",
    ),
    "scatter-short": (
        lambda me, _: scatter([ONE], [[ONE]], me),
        "Incorrect input list size 1. Input list size should be 2",
    ),
    "scatter-type": (lambda me, _: scatter([ONE], [[DOUBLE] * WORLD], me), "invalid tensor type"),
    "scatter-size": (lambda me, _: scatter([ONE], [[TWO] * WORLD], me), "invalid tensor size"),
    "scatter-elsewhere": (
        lambda me, other: scatter([ONE], [[ONE] * WORLD], other),
        "requires empty input on non-root",
    ),
    "all_gather-short": (
        lambda me, _: raw().allgather([[ONE] * (WORLD - 1)], [ONE]),
        "invalid output tensor list",
    ),
    "all_gather-long": (
        lambda me, _: raw().allgather([[ONE] * (WORLD + 1)], [ONE]),
        "invalid output tensor list",
    ),
    "all_gather-type": (
        lambda me, _: raw().allgather([[ONE, DOUBLE]], [ONE]),
        "invalid tensor type",
    ),
    "all_gather-empty": (
        lambda me, _: raw().allgather([], []),
        "requires non-empty input tensor list",
    ),
    "all_gather-lists": (
        lambda me, _: raw().allgather([], [ONE]),
        "requires input/output tensor lists to have the same length",
    ),
    "all_gather_coalesced-ranks": (
        lambda me, _: whole().allgather_coalesced([[ONE]], [ONE]),
        "output lists should be equal to world size",
    ),
    "all_gather_coalesced-size": (
        lambda me, _: whole().allgather_coalesced([[ONE, ONE], [ONE, TWO]], [ONE, ONE]),
        "invalid size of output tensor at index 1",
    ),
    "all_gather_coalesced-type": (
        lambda me, _: whole().allgather_coalesced([[DOUBLE], [ONE]], [ONE]),
        "invalid tensor type at index 0",
    ),
    "all_reduce-empty": (lambda me, _: raw().allreduce([]), "requires non-empty tensor list"),
    "all_reduce-types": (lambda me, _: raw().allreduce([ONE, DOUBLE]), "invalid tensor type"),
    "all_reduce-sizes": (lambda me, _: raw().allreduce([ONE, TWO]), "invalid tensor size"),
    "all_reduce_coalesced-empty": (
        lambda me, _: raw().allreduce_coalesced([], dist.AllreduceCoalescedOptions()),
        "requires non-empty tensor list",
    ),
    "all_reduce_coalesced-types": (
        lambda me, _: raw().allreduce_coalesced([ONE, DOUBLE]),
        "tensors must all have the same type",
    ),
    "all_reduce_coalesced-layouts": (
        lambda me, _: raw().allreduce_coalesced([ONE, SPARSE]),
        "invalid tensor layout at index 1",
    ),
    "all_reduce_coalesced-sparse": (
        lambda me, _: raw().allreduce_coalesced([SPARSE, SPARSE]),
        "unsupported layout",
    ),
}


@pytest.mark.parametrize("call", CALLS)
@ranks(WORLD)
def test_words(call):
    function, text = CALLS[call]
    me = place().rank
    assert_refused(lambda: function(me, 1 - me), text)


@ranks(WORLD)
def test_dtypes_that_differ_are_torch_s_own_error():
    for call in (
        lambda: dist.all_gather([torch.empty(1) for _ in range(WORLD)], torch.ones(1).int()),
        lambda: dist.all_to_all([torch.empty(1)] * WORLD, [torch.ones(1).int()] * WORLD),
        lambda: dist.reduce_scatter(torch.empty(1), [torch.ones(1).int()] * WORLD),
    ):
        with pytest.raises(ValueError, match="different dtypes"):
            call()


@pytest.mark.parametrize("complex_input", [False, True])
@pytest.mark.parametrize("complex_outputs", [(False, False), (True, False), (True, True)])
@ranks(WORLD)
def test_complex_and_real_tensors_are_gathered_alike(complex_input, complex_outputs):
    """A complex number is two real ones to torch, which lets both stand in one call."""
    mine = torch.tensor([1.0, place().rank])
    outputs = [torch.empty(2) for _ in range(WORLD)]
    given = [
        torch.view_as_complex(output) if is_complex else output
        for output, is_complex in zip(outputs, complex_outputs, strict=True)
    ]
    dist.all_gather(given, torch.view_as_complex(mine) if complex_input else mine)
    assert [output.tolist() for output in outputs] == [[1, 0], [1, 1]]


@ranks(WORLD)
def test_sending_to_oneself_by_torch_s_function():
    with pytest.raises(ValueError, match=r"(?i)invalid .* rank"):
        dist.send(ONE, place().rank)
