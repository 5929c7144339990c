"""Whole processes: their exit, forks, torchrun, DataLoader workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dist.pool import ranks
from dist.worker import place
from ringcomm.testing.ranks import rank_environment, reserve_port

CLEAN_EXIT = """
import torch, torch.distributed as dist, ringcomm
dist.init_process_group("ringcomm")
tensor = torch.ones(100_000)
dist.all_reduce(tensor)
kept = dist.all_reduce(torch.ones(5), async_op=True)
kept.get_future().then(lambda future: None)
kept.wait()
assert tensor[0] == 2
print("done", flush=True)
"""

UNDER_TORCHRUN = """
import os, torch, torch.distributed as dist, ringcomm
dist.init_process_group("ringcomm")
tensor = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(tensor)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {tensor.item()}\\n", end="", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.smoke
def test_two_processes_that_exit_without_destroying_the_group(tmp_path):
    script = tmp_path / "clean_exit.py"
    script.write_text(CLEAN_EXIT)
    with reserve_port() as port:
        processes = [
            subprocess.Popen(
                [sys.executable, str(script)],
                env={**os.environ, **rank_environment(rank, 2, port)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            outputs = [process.communicate(timeout=50) for process in processes]
        finally:
            for process in processes:
                process.kill()
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
        assert out == "done\n"
        assert "ringcomm" not in err


@pytest.mark.timeout(90)
def test_torchrun(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(UNDER_TORCHRUN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(script)),
        ],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line)
    assert lines == ["rank 0 of 2: 3.0", "rank 1 of 2: 3.0"]


@ranks(2)
def test_forked_child_is_refused_and_harms_nothing():
    dist.barrier()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = "no error"
        try:
            dist.all_reduce(torch.ones(3))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert told.startswith(("ValueError", "DistBackendError", "RuntimeError"))
    assert "forked" in told
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


@ranks(2)
def test_forked_children_that_leave_the_group_take_nothing_from_the_parent():
    for count in (3, 300_000):
        tensor = torch.ones(count)
        dist.all_reduce(tensor)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                dist.destroy_process_group()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        dist.all_reduce(tensor)
        assert (tensor == 4).all()


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor(float(index**2))


@ranks(2, timeout=50)
def test_data_loader_workers():
    here = place()
    sampler = torch.utils.data.DistributedSampler(Squares(), shuffle=False)
    total = torch.zeros(1)
    for _ in range(2):
        loader = torch.utils.data.DataLoader(
            Squares(), batch_size=5, sampler=sampler, num_workers=2, multiprocessing_context="fork"
        )
        for batch in loader:
            step = batch.sum().view(1)
            dist.all_reduce(step)
            total += step
    assert total.item() == 2 * sum(index**2 for index in range(20))
    assert here.world == 2


def test_the_package_works_from_anywhere(tmp_path):
    assert Path.cwd() != tmp_path
    done = subprocess.run(
        [sys.executable, "-c", "import ringcomm; print(ringcomm.Options().backend)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout == "ringcomm\n", done.stderr
