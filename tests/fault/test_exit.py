"""How processes end after errors, and without taking leave: at once, and with their own code."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ringcomm.testing.ranks import rank_environment, reserve_port

PROLOGUE = """
import os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
import ringcomm
dist.init_process_group("ringcomm", timeout=timedelta(seconds=3))
rank = dist.get_rank()
tensor = torch.ones(1000)
dist.all_reduce(tensor)
"""


def run(body: str, world: int = 2, limit: float = 30.0) -> list[tuple[int, str]]:
    """Exit code and stderr of each rank; every one has ended within two seconds of the first."""
    with reserve_port() as port:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", PROLOGUE + body],
                env=rank_environment(rank, world, port),
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        end = time.monotonic() + limit
        first = None
        try:
            while any(process.poll() is None for process in processes):
                assert time.monotonic() < end, "a rank hangs"
                if first is None and any(process.poll() is not None for process in processes):
                    first = time.monotonic()
                assert first is None or time.monotonic() - first < 10, "a rank hangs at its end"
                time.sleep(0.02)
        finally:
            for process in processes:
                process.kill()
        return [(process.wait(), process.communicate()[1]) for process in processes]


def test_leaving_without_destroy_is_clean() -> None:
    for code, errors in run(""):
        assert code == 0, errors
        assert "terminate called" not in errors


def test_leaving_with_operations_in_flight_is_clean() -> None:
    for code, errors in run("work = dist.all_reduce(torch.ones(10_000_000), async_op=True)\n"):
        assert code == 0, errors


@pytest.mark.parametrize(
    "how", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(7)", "sys.exit(7)"]
)
def test_an_uncaught_error_ends_the_process_with_code_one(how: str) -> None:
    body = f"""
if rank == 0:
    {how}
while True:
    dist.all_reduce(tensor)
"""
    (first, _), (second, errors) = run(body)
    assert first == (-9 if "SIGKILL" in how else 7)
    assert second == 1, errors
    assert "rank 0 (" in errors
    assert "DistNetworkError" in errors


def test_destroy_after_an_error_does_not_hang() -> None:
    body = """
if rank == 0:
    os._exit(0)
try:
    while True:
        dist.all_reduce(tensor)
except dist.DistNetworkError:
    start = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - start < 1.0
    sys.exit(5)
"""
    (first, _), (second, errors) = run(body)
    assert first == 0
    assert second == 5, errors


def test_an_error_inside_an_operation_of_another_thread_does_not_hang_the_exit() -> None:
    body = """
import threading
if rank == 0:
    time.sleep(0.5)
    os._exit(0)
def wait():
    try:
        while True:
            dist.all_reduce(tensor)
    except dist.DistNetworkError as error:
        print("raised", error, file=sys.stderr)
thread = threading.Thread(target=wait)
thread.start()
"""
    (_, _), (second, errors) = run(body)
    assert second == 0, errors
    assert "raised" in errors
    assert "rank 0 (" in errors
