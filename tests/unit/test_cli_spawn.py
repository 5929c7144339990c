"""Starting ranks: results, failures, and that no process is left behind."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from ringcomm.cli.launch import LaunchError, launch
from ringcomm.testing import SpawnError, rank_environment, reserve_port, spawn


def place(offset):
    return int(os.environ["RANK"]) + offset, os.environ["WORLD_SIZE"], os.environ.get("EXTRA")


def write_pid_then(folder, how):
    rank = os.environ["RANK"]
    Path(folder, rank).write_text(str(os.getpid()))
    if rank == "1":
        while how != "hang" and not Path(folder, "0").exists():
            time.sleep(0.01)
        if how == "raise":
            raise ValueError("out of paper")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(120)


def crash_at_exit():
    import atexit

    atexit.register(os._exit, 7)


def pids(folder):
    return [int(file.read_text()) for file in folder.iterdir()]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_come_in_rank_order():
    assert spawn(place, 3, (10,), env={"EXTRA": "x"}) == [(10 + r, "3", "x") for r in range(3)]


@pytest.mark.parametrize(
    ("how", "text"),
    [("raise", "ValueError: out of paper"), ("die", "rank 1 was killed by signal 9")],
)
def test_failure_is_named_and_ends_every_rank(tmp_path, how, text):
    with pytest.raises(SpawnError, match=text) as error:
        spawn(write_pid_then, 2, (str(tmp_path), how), grace=0.5)
    assert [failure.rank for failure in error.value.failures] == [1, 0]
    assert error.value.failures[1].text == "was still running 0.5 s later"
    assert len(pids(tmp_path)) == 2
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_timeout_ends_every_rank(tmp_path):
    others = set(multiprocessing.active_children())  # of tests before this one
    begin = time.monotonic()
    with pytest.raises(SpawnError, match=r"rank 0 did not end in 2 s\nrank 1 did not end"):
        spawn(write_pid_then, 2, (str(tmp_path), "hang"), timeout=2)
    assert time.monotonic() - begin < 10
    assert set(multiprocessing.active_children()) <= others


def test_crash_after_the_result_is_a_failure():
    with pytest.raises(SpawnError, match="rank 0 returned, then exited with 7"):
        spawn(crash_at_exit, 1)


def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match="nprocs is 0, must be at least 1"):
        spawn(place, 0)
    with pytest.raises(ValueError, match="rank is 2, must be from 0 to 1"):
        rank_environment(2, 2, 1)


def test_reserved_port_is_for_the_listener_alone():
    with reserve_port() as port:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


RANK_SCRIPT = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(str(os.getpid()))
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if sys.argv[2] == "fail" and os.environ["RANK"] == "1":
    sys.exit("out of paper")
if sys.argv[2] != "succeed":
    time.sleep(120)
"""


def command(folder, how):
    return [sys.executable, "-c", RANK_SCRIPT, str(folder), how]


def test_launch_shows_rank_0_alone(tmp_path, capfd):
    launch(command(tmp_path, "succeed"), 2)
    assert capfd.readouterr().out == "rank 0 of 2\n"


def test_ranks_get_no_variable_that_reads_as_an_option(capfd):
    # The backend takes every RINGCOMM_... variable for an option, and rejects unknown ones.
    code = "import os; print([name for name in os.environ if name.startswith('RINGCOMM_')])"
    launch([sys.executable, "-c", code], 1)
    assert capfd.readouterr().out.strip() == str(
        [name for name in os.environ if name.startswith("RINGCOMM_")]
    )


def test_launch_shows_what_the_failed_rank_printed(tmp_path):
    begin = time.monotonic()
    with pytest.raises(LaunchError) as error:
        launch(command(tmp_path, "fail"), 2, grace=0.5)
    assert time.monotonic() - begin < 10
    assert str(error.value).splitlines() == [
        "rank 1 exited with 1; the end of its output:",
        "rank 1 of 2",
        "out of paper",
    ]
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_launch_ends_ranks_that_take_too_long(tmp_path):
    with pytest.raises(LaunchError, match="after 1 s still running: rank 0, 1"):
        launch(command(tmp_path, "hang"), 2, timeout=1)
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_terminated_launcher_ends_its_ranks(tmp_path):
    import subprocess

    code = "import sys; from ringcomm.cli.launch import launch; launch(sys.argv[1:], 2)"
    launcher = subprocess.Popen([sys.executable, "-c", code, *command(tmp_path, "hang")])
    try:
        end = time.monotonic() + 40
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.1)
        launcher.terminate()
        assert launcher.wait(timeout=10) == 128 + signal.SIGTERM
    finally:
        launcher.kill()
    assert len(pids(tmp_path)) == 2
    assert not any(alive(pid) for pid in pids(tmp_path))
