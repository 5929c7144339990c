"""DDP of models that are not all float32 matrices: other dtypes, sparse, shared, frozen, buffers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dist.pool import ranks
from dist.test_ddp import compare_and_agree, train
from dist.worker import agree, place


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


class Dtypes(nn.Module):
    """A layer of each floating type, so that DDP makes buckets of each."""

    def __init__(self):
        super().__init__()
        types = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
        self.layers = nn.ModuleList(nn.Linear(16, 16, dtype=dtype) for dtype in types)
        self.head = nn.Linear(16, 4)

    def forward(self, inputs):
        for layer in self.layers:
            inputs = torch.tanh(layer(inputs.to(layer.weight.dtype)))
        return self.head(inputs.float())


class Complex(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 8, dtype=dtype) / 4)
        self.head = nn.Linear(8, 4)

    def forward(self, inputs):
        return self.head((inputs.to(self.weight.dtype) @ self.weight).abs().float())


class Words(nn.Module):
    """Sparse gradients of other rows on every rank, some of them of none on one."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 8, sparse=True)
        self.bags = nn.EmbeddingBag(40, 8, sparse=True, mode="sum")
        self.head = nn.Linear(8, 4)

    def forward(self, inputs):
        words = (inputs.abs() * 10).long() % 40
        return self.head(self.table(words).sum(1) + self.bags(words))


class Odd(nn.Module):
    """Shared, frozen, scalar and one-element parameters, and a convolution in channels-last."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.shift = nn.Parameter(torch.zeros(1))
        self.image = nn.Conv2d(4, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.head = nn.Linear(16, 4)

    def forward(self, inputs):
        hidden = torch.relu(self.frozen(self.shared(inputs)))
        hidden = self.shared(hidden) * self.scale + self.shift
        image = hidden.view(-1, 4, 2, 2).contiguous(memory_format=torch.channels_last)
        return self.head(self.image(image).flatten(1))


class Recomputed(nn.Module):
    """Runs a part of its forward pass again in the backward pass, the same layer twice."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 4)

    def forward(self, inputs):
        for _ in range(2):
            inputs = checkpoint(self.body, inputs, use_reentrant=False)
        return self.head(inputs)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(4, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, inputs):
        return self.head(self.cells(inputs.view(-1, 4, 4))[0][:, -1])


MODELS = {
    "dtypes": {"build": Dtypes, "optimizer": sgd},
    "dtypes as views": {"build": Dtypes, "optimizer": sgd, "gradient_as_bucket_view": True},
    "sparse": {"build": Words, "optimizer": sgd},
    "odd": {"build": Odd},
    "recomputed": {"build": Recomputed, "static_graph": True},
    "recurrent": {"build": Recurrent},
}


@pytest.mark.parametrize("model", MODELS)
@ranks(2, 3)
def test_models(model):
    # Rounded to half precision, three ranks' sum depends on its order.
    rounded = model.startswith("dtypes") and place().world > 2
    tolerance = {"rtol": 0.02, "atol": 0.01} if rounded else None
    compare_and_agree(tolerance, steps=4, **MODELS[model])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@ranks(2, 3)
def test_complex_parameters(dtype):
    """The mean of the ranks' gradients, in both parts; gloo knows no complex sums from C++."""
    here = place()
    torch.manual_seed(0)
    model = DistributedDataParallel(Complex(dtype))
    inputs = torch.randn(here.world, 8, 16)
    model(inputs[here.rank]).square().mean().backward()
    alone = Complex(dtype)
    alone.load_state_dict(model.module.state_dict())
    alone(inputs.flatten(0, 1)).square().mean().backward()
    assert alone.weight.grad.imag.abs().max() > 0
    torch.testing.assert_close(model.module.weight.grad, alone.weight.grad)
    agree(torch.view_as_real(model.module.weight.grad))


@pytest.mark.parametrize("megabytes", [1e-6, 0.01, 25])
@ranks(2, 3)
def test_sizes_of_buckets(megabytes):
    """From a bucket for every parameter to one for all."""
    compare_and_agree(steps=3, bucket_cap_mb=megabytes)


@ranks(2, 3)
def test_buffers_are_rank_0s_at_every_forward_pass():
    here = place()

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            for dtype in (torch.float64, torch.int64, torch.int8, torch.bool, torch.bfloat16):
                name = str(dtype).replace("torch.", "of_")
                self.register_buffer(name, torch.full((3,), here.rank + 1).to(dtype))

        def forward(self, inputs):
            seen = [buffer.tolist() for buffer in self.buffers()]
            for buffer in self.buffers():
                buffer.copy_(buffer.double() + here.rank + 1)
            return self.layer(inputs), seen

    model = DistributedDataParallel(Counting())
    for step in range(3):
        output, seen = model(torch.ones(1, 2))
        output.sum().backward()
        assert [float(values[0]) for values in seen] == [1.0 + step] * 3 + [1.0, 1.0 + step]
        agree(seen)


@ranks(2)
def test_unused_parameters_of_one_rank():
    """A branch that only one rank took has half its gradient everywhere; one nobody took, none."""
    here = place()

    class Choice(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(3))

        def forward(self, inputs):
            return self.branches[here.rank](inputs)

    model = DistributedDataParallel(Choice(), find_unused_parameters=True)
    model(torch.full((1, 2), here.rank + 4.0)).sum().backward()
    gradients = [branch.weight.grad for branch in model.module.branches]
    assert gradients[0].tolist() == [[2.0, 2.0]]
    assert gradients[1].tolist() == [[2.5, 2.5]]
    assert gradients[2] is None


def uneven_inputs(rank, step):
    return torch.arange(8.0).view(2, 4) * (step + 1) / (rank + 2)


def uneven_steps(rank):
    return 2 + 2 * rank


def train_unevenly(**arguments):
    """Rank r has inputs for 2 + 2 r steps; returns the parameters."""
    here = place()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = sgd(model.parameters())
    with model.join(**arguments):
        for step in range(uneven_steps(here.rank)):
            model(uneven_inputs(here.rank, step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


@pytest.mark.parametrize("by_initial", [True, False])
@ranks(2, 3)
def test_uneven_inputs(by_initial):
    """A rank without inputs adds zeros; what divides is the number of all ranks, or of the rest."""
    world = place().world
    ours = train_unevenly(divide_by_initial_world_size=by_initial)
    torch.manual_seed(0)
    alone = nn.Linear(4, 2)
    optimizer = sgd(alone.parameters())
    for step in range(uneven_steps(world - 1)):
        active = [rank for rank in range(world) if step < uneven_steps(rank)]
        for rank in active:
            loss = alone(uneven_inputs(rank, step)).square().mean()
            (loss / (world if by_initial else len(active))).backward()
        optimizer.step()
        optimizer.zero_grad()
    for tensor, expected in zip(ours, alone.parameters(), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6)
        agree(tensor)


@ranks(2)
def test_uneven_inputs_can_be_an_error():
    with pytest.raises(RuntimeError, match="exhausted"):
        train_unevenly(throw_on_early_termination=True)
    tensor = torch.tensor([place().rank])
    dist.all_reduce(tensor)  # the group lives on
    assert tensor.item() == 1


@ranks(3)
def test_model_of_some_of_the_ranks():
    here = place()
    pair = dist.new_group([0, 2])
    if here.rank != 1:
        model = DistributedDataParallel(nn.Linear(2, 1, bias=False), process_group=pair)
        model(torch.full((1, 2), here.rank + 1.0)).sum().backward()
        assert model.module.weight.grad.tolist() == [[2.0, 2.0]]


@ranks(2)
def test_training_is_repeatable_to_the_last_bit():
    first, second = train("ringcomm", steps=3), train("ringcomm", steps=3)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
