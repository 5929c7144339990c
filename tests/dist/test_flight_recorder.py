"""The record of the last calls, and torch's analyser reading it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace

from dist.pool import ranks
from dist.worker import group, place
from ringcomm import flight_recorder


def since(first):
    return [call for call in flight_recorder.calls(stacks=False) if call["record_id"] >= first]


def seen():
    """The number of the next call: earlier tests have made some in this process."""
    calls = flight_recorder.calls(stacks=False)
    return calls[-1]["record_id"] + 1 if calls else 0


def everything():
    """One of each kind of call, in a group of two."""
    here = place()
    mine, both = torch.ones(3), [torch.zeros(3), torch.zeros(3)]
    root = here.rank == 0
    dist.all_reduce(mine)
    dist.broadcast(mine, 0)
    dist.reduce(mine, 1)
    dist.all_gather(both, torch.ones(3))
    dist.all_gather_into_tensor(torch.zeros(6), torch.ones(3))
    dist.reduce_scatter(torch.zeros(3), both)
    dist.reduce_scatter_tensor(torch.zeros(3), torch.ones(6))
    dist.gather(mine, both if root else None, dst=0)
    dist.scatter(mine, both if root else None, src=0)
    dist.all_to_all_single(torch.zeros(4), torch.ones(4))
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(5)])
    dist.barrier()
    if root:
        dist.send(torch.ones(7), 1)
        dist.send(torch.ones(2), 1)
    else:
        dist.recv(torch.zeros(7), 0)
        dist.recv(torch.zeros(2))
    dist.barrier()


COLLECTIVES = [
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "_all_gather_base",
    "reduce_scatter",
    "_reduce_scatter_base",
    "gather",
    "scatter",
    "all_to_all",
    "allreduce_coalesced",
    "barrier",
]


@ranks(2, backend=None)
def test_every_call_is_recorded():
    here = place()
    before, start = seen(), time.time_ns()
    with group():
        everything()
        calls = since(before)
    transfer = "send 0->1" if here.rank == 0 else "recv 1<-0"
    names = [*COLLECTIVES, transfer, transfer, "barrier"]
    assert [call["profiling_name"] for call in calls] == [f"ringcomm:{name}" for name in names]
    numbers = [(call["collective_seq_id"], call["p2p_seq_id"]) for call in calls]
    assert numbers == [*((i, 0) for i in range(1, 13)), (12, 1), (12, 2), (13, 2)]
    assert [call["op_id"] for call in calls] == list(range(1, 16))
    assert [call["is_p2p"] for call in calls] == [False] * 12 + [True, True, False]
    for call in calls:
        assert call["state"] == "completed"
        assert call["error"] == ""
        assert start <= call["time_created_ns"] <= call["time_ended_ns"] <= time.time_ns()
        assert 0 < call["duration_ms"] < 5000
        assert call["ranks"] == [0, 1]
        assert call["timeout_ms"] == 15000
        assert call["process_group"] == ("0", "default_pg")
    assert calls[3]["input_sizes"] == [[3]]
    assert calls[3]["output_sizes"] == [[2, 3]]
    assert calls[10]["input_sizes"] == [[2], [5]]
    assert calls[10]["input_dtypes"] == ["Float", "Float"]


@ranks(2, backend=None)
def test_a_call_that_waits_is_started_and_then_completed():
    here = place()
    with group():
        dist.barrier()
        before = seen()
        if here.rank == 0:
            work = dist.all_reduce(torch.ones(5), async_op=True)
            (call,) = since(before)
            assert (call["state"], call["time_ended_ns"]) == ("started", 0)
            here.store.set("looked", "1")
            work.wait()
        else:
            here.store.wait(["looked"])
            time.sleep(0.2)
            dist.all_reduce(torch.ones(5))
        (call,) = since(before)
        assert call["state"] == "completed"
        assert here.rank == 1 or 190 < call["duration_ms"] < 10_000


@ranks(2, backend=None)
def test_a_call_that_failed_says_why():
    here = place()
    before = seen()
    with group(timeout=timedelta(seconds=1)):
        dist.barrier()
        if here.rank == 0:
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(5))
            call = since(before)[-1]
            assert call["state"] == "failed"
            assert "rank 1" in call["error"]
            here.store.set("failed", "1")
        else:
            here.store.wait(["failed"])


@ranks(3, backend=None)
def test_ranks_of_a_smaller_group_are_those_of_the_job():
    here = place()
    with group():
        part = dist.new_group([0, 2], backend="ringcomm", group_desc="ends")
        before = seen()
        if here.rank != 1:
            dist.all_reduce(torch.ones(1), group=part)
            (call,) = since(before)
            assert call["ranks"] == [0, 2]
            assert call["process_group"][1] == "ends"
        dist.barrier()


def analysed(folder):
    """What torchfrtrace finds, as it writes it: groups, memberships, stacks, collectives, calls."""
    output = Path(folder, "database")
    fr_trace.main([folder, "--prefix", "rank_", "-o", str(output)])
    _, database = pickle.loads(output.read_bytes())
    return database


def last_entries(whole, count):
    entries = [{**entry, "record_id": i} for i, entry in enumerate(whole["entries"][-count:])]
    groups = {"0": whole["pg_config"]["0"]}
    return pickle.dumps({**whole, "entries": entries, "pg_config": groups})


def written(entries_of_rank):
    """The folder with both ranks' dumps, which hold this many of their last entries.

    Numbered from 0: the analyser takes it that ranks begin alike, and these processes have made
    calls for other tests, not equally many.
    """
    here = place()
    if here.rank == 0:
        here.store.set("folder", tempfile.mkdtemp())
    folder = here.store.get("folder").decode()
    path = flight_recorder.write(f"{folder}/rank_")
    assert path == Path(folder, f"rank_{here.rank}")
    whole = pickle.loads(path.read_bytes())
    path.write_bytes(last_entries(whole, entries_of_rank))
    dist.barrier()
    return folder


@ranks(2, backend=None)
def test_torchs_analyser_matches_the_calls_of_the_ranks():
    before = seen()
    with group():
        everything()
        folder = written(seen() - before)
        if place().rank == 0:
            database = analysed(folder)
            names = [collective.collective_name for collective in database.collectives]
            assert names[:12] == [f"gloo:{name}" for name in COLLECTIVES]
            failures = [one for one in database.collectives if not one.pass_check]
            assert failures == []
            assert all(one.collective_state == "completed" for one in database.collectives)
        dist.barrier()


@ranks(2, backend=None)
def test_torchs_analyser_finds_the_rank_that_has_not_called():
    here = place()
    before = seen()
    with group():
        dist.barrier()
        if here.rank == 0:
            work = dist.all_reduce(torch.ones(9), async_op=True)
        folder = tempfile.mkdtemp() if here.rank == 0 else ""
        if here.rank == 0:
            here.store.set("folder", folder)
        folder = here.store.get("folder").decode()
        path = flight_recorder.write(f"{folder}/rank_")
        whole = pickle.loads(path.read_bytes())
        path.write_bytes(last_entries(whole, seen() - before))
        here.store.set(f"written{here.rank}", "1")
        here.store.wait(["written0", "written1"])
        if here.rank == 0:
            waiting = analysed(folder).collectives[-1]
            assert waiting.collective_name == "gloo:all_reduce"
            assert waiting.collective_state == "started"
            assert waiting.missing_ranks == {1}
            here.store.set("analysed", "1")
            work.wait()
        else:
            here.store.wait(["analysed"])
            dist.all_reduce(torch.ones(9))


ALONE = """
import os, torch, torch.distributed as dist, ringcomm
from ringcomm import flight_recorder
store = dist.HashStore()
dist.init_process_group("ringcomm", store=store, rank=0, world_size=1)

def twelve():
    for _ in range(12):
        dist.all_reduce(torch.ones(2))

twelve()
calls = flight_recorder.calls()
print(len(calls), *(call["op_id"] for call in calls))
print(*(frame["name"] for frame in calls[0]["frames"]) if calls else "-")
"""


def alone(**variables):
    environment = {key: value for key, value in os.environ.items() if "FR_" not in key}
    output = subprocess.run(
        [sys.executable, "-c", ALONE],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    counts, frames = output.stdout.splitlines()
    return [int(count) for count in counts.split()], frames.split()


def test_switched_off():
    assert alone(TORCH_FR_BUFFER_SIZE="0") == ([0], ["-"])


def test_the_buffer_keeps_the_last_and_their_stacks():
    counts, frames = alone(TORCH_FR_BUFFER_SIZE="5")
    assert counts == [5, 8, 9, 10, 11, 12]
    assert "twelve" in frames


def test_without_the_variable_there_are_no_stacks():
    counts, frames = alone()
    assert counts[0] == 12
    assert frames == []
