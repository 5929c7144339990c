"""Pipelines of two ranks, of one stage a rank and of two, train as one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from dist.pool import ranks
from dist.training import network
from dist.worker import place


def batch(size):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(size, 6, generator=generator), torch.randn(size, 3, generator=generator)


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@ranks(2)
def test_pipeline_trains_as_one_process(schedule):
    here = place()
    reference = network()
    parts = [copy.deepcopy(reference)[:2], copy.deepcopy(reference)[2:]]
    stage = PipelineStage(parts[here.rank], here.rank, 2, torch.device("cpu"))
    pipeline = schedule(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    inputs, targets = batch(16)
    for _ in range(2):
        reference.zero_grad()
        parts[here.rank].zero_grad()
        loss = nn.functional.mse_loss(reference(inputs), targets)
        loss.backward()
        if here.rank == 0:
            pipeline.step(inputs)
        else:
            losses = []
            pipeline.step(target=targets, losses=losses)
            torch.testing.assert_close(torch.stack(losses).mean(), loss)
        own = (reference[:2], reference[2:])[here.rank]
        for ours, alone in zip(parts[here.rank].parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, alone.grad, rtol=1e-4, atol=1e-6)


def deep():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(6, 3))


# Whose stages: dealt out in turn, or there and back, so that rank 0 has the first and the last.
IN_TURN, THERE_AND_BACK = ((0, 2), (1, 3)), ((0, 3), (1, 2))


@pytest.mark.parametrize(
    ("schedule", "owned"),
    [
        (ScheduleInterleaved1F1B, IN_TURN),
        (ScheduleLoopedBFS, IN_TURN),
        (ScheduleInterleavedZeroBubble, IN_TURN),
        (ScheduleZBVZeroBubble, THERE_AND_BACK),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
@ranks(2)
def test_two_stages_a_rank(schedule, owned):
    here = place()
    reference, mine = deep(), owned[here.rank]
    parts = {index: copy.deepcopy(reference[index]) for index in mine}
    stages = [PipelineStage(parts[index], index, 4, torch.device("cpu")) for index in mine]
    pipeline = schedule(stages, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    inputs, targets = batch(8)
    for _ in range(2):
        reference.zero_grad()
        for part in parts.values():
            part.zero_grad()
        loss = nn.functional.mse_loss(reference(inputs), targets)
        loss.backward()
        losses = []
        given = [inputs] if 0 in mine else []
        wanted = {"target": targets, "losses": losses} if 3 in mine else {}
        pipeline.step(*given, **wanted)
        if 3 in mine:
            torch.testing.assert_close(torch.stack(losses).mean(), loss)
        for index, part in parts.items():
            pairs = zip(part.parameters(), reference[index].parameters(), strict=True)
            for ours, alone in pairs:
                torch.testing.assert_close(ours.grad, alone.grad, rtol=1e-4, atol=1e-6)
