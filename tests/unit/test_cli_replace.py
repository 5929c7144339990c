"""Replacing a backend's name, with gloo standing in for the replacement."""

import argparse
import json
import multiprocessing
import sys
import types

import pytest
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from ringcomm.cli.replace import install, replace_name
from ringcomm.cli.run import main, parse, parse_names, run_program

ORIGINAL = distributed_c10d.init_process_group


@pytest.fixture
def installed():
    replacement = install({"nccl"}, "gloo")
    yield replacement
    if dist.is_initialized():
        dist.destroy_process_group()
    replacement.remove()


def alone(**kwargs):
    """Arguments for a group of one rank."""
    return {"store": dist.HashStore(), "rank": 0, "world_size": 1, **kwargs}


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("nccl", "ringcomm"),
        ("NCCL", "ringcomm"),
        ("gloo", "ringcomm"),
        ("cpu:gloo,cuda:nccl", "ringcomm"),
        ("cpu:Gloo, cuda:NCCL", "ringcomm"),
        ("cuda:nccl", "ringcomm"),
        ("cpu:gloo,cuda:custom", "cpu:ringcomm,cuda:custom"),
        ("mpi", "mpi"),
        ("MPI", "MPI"),
        ("ringcomm", "ringcomm"),
        ("", ""),
    ],
)
def test_names(asked, got):
    assert replace_name(asked, {"gloo", "nccl"}, "ringcomm") == got


def test_only_the_given_names_are_replaced():
    assert replace_name("cpu:gloo,cuda:nccl", {"nccl"}, "ringcomm") == "cpu:gloo,cuda:ringcomm"


@pytest.mark.parametrize("name", ["nccl", "NCCL", "cuda:nccl"])
def test_default_group(installed, name):
    dist.init_process_group(name, **alone())
    assert dist.get_backend() == "gloo"


def test_name_imported_before_and_after(installed):
    from torch.distributed import init_process_group

    assert device_mesh.init_process_group is init_process_group
    assert init_process_group.__name__ == "init_process_group"
    init_process_group(backend="nccl", **alone())
    assert dist.get_backend() == "gloo"


def test_module_that_took_the_name_earlier(monkeypatch):
    module = types.ModuleType("took_the_name_earlier")
    module.init_process_group = dist.init_process_group
    monkeypatch.setitem(sys.modules, module.__name__, module)
    replacement = install({"nccl"}, "gloo")
    assert module.init_process_group is not ORIGINAL
    replacement.remove()
    assert module.init_process_group is ORIGINAL


def test_new_groups(installed):
    dist.init_process_group("gloo", **alone())
    assert dist.get_backend(dist.new_group([0], None, "nccl")) == "gloo"
    assert dist.get_backend(dist.new_group(backend="cpu:gloo,cuda:nccl")) == "gloo"
    assert dist.get_backend(dist.new_group()) == "gloo"


class Recorder:
    """Stands for one of torch's functions and keeps what it was called with."""

    def __init__(self, monkeypatch):
        def init_process_group(backend=None, timeout=None, pg_options=None, device_id=None):
            self.seen = (backend, pg_options)

        monkeypatch.setattr(distributed_c10d, "init_process_group", init_process_group)
        monkeypatch.setattr(dist, "init_process_group", init_process_group)


def options_of(module):
    return type("Options", (), {"__module__": module})()


def test_no_name_is_the_default_of_the_machine(monkeypatch):
    recorder = Recorder(monkeypatch)
    monkeypatch.setitem(dist.Backend.default_device_backend_map, "cpu", "gloo")
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda **kwargs: None)
    for replaced, got in (({"gloo"}, "ringcomm"), ({"nccl"}, None)):
        replacement = install(replaced, "ringcomm")
        dist.init_process_group()
        assert recorder.seen == (got, None)
        replacement.remove()


def test_options_of_the_replaced_backend_are_left_out(monkeypatch, capsys):
    recorder = Recorder(monkeypatch)
    monkeypatch.delenv("RANK", raising=False)
    replacement = install({"nccl"}, "ringcomm", quiet=False)
    own, foreign = options_of("ringcomm._C"), options_of("torch._C._distributed_c10d")
    dist.init_process_group("nccl", pg_options=foreign)
    assert recorder.seen == ("ringcomm", None)
    dist.init_process_group("nccl", pg_options=own)
    assert recorder.seen == ("ringcomm", own)
    dist.init_process_group("mpi", pg_options=foreign)
    assert recorder.seen == ("mpi", foreign)
    replacement.remove()
    assert capsys.readouterr().err.splitlines() == [
        "ringcomm run: init_process_group('nccl') uses 'ringcomm'",
        "ringcomm run: init_process_group: leaves out pg_options of type Options",
        "ringcomm run: init_process_group('nccl') uses 'ringcomm'",
    ]


def test_remove_restores(installed):
    assert dist.init_process_group is not ORIGINAL
    installed.remove()
    assert dist.init_process_group is ORIGINAL
    assert device_mesh.init_process_group is ORIGINAL
    assert "ringcomm" not in multiprocessing.spawn.get_preparation_data("x")


def backend_in_child(queue):
    dist.init_process_group("nccl", **alone())
    queue.put(dist.get_backend())
    dist.destroy_process_group()


def test_processes_of_multiprocessing_are_caught(installed):
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=backend_in_child, args=(queue,))
    child.start()
    child.join(50)
    assert child.exitcode == 0
    assert queue.get() == "gloo"


PROGRAM = """
import json, sys
import beside
json.dump([__name__, sys.argv, sys.path[0], beside.VALUE], open(sys.argv[1], "w"))
"""


def test_script_finds_what_python_would_give_it(tmp_path, monkeypatch):
    folder = tmp_path / "program"
    folder.mkdir()
    script, out = folder / "script.py", tmp_path / "out.json"
    script.write_text(PROGRAM)
    (folder / "beside.py").write_text("VALUE = 42")
    monkeypatch.setattr(sys, "argv", ["x"])
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    run_program(str(script), [str(out), "--steps", "3"], module=False)
    argv = [str(script), str(out), "--steps", "3"]
    assert json.loads(out.read_text()) == ["__main__", argv, str(folder), 42]


def test_options_end_at_the_program():
    options = parse(["--replace", "NCCL,ucc", "train.py", "-m", "--replace", "x"])
    assert options.replace == {"nccl", "ucc"}
    assert not options.module
    assert (options.program, options.arguments) == ("train.py", ["-m", "--replace", "x"])
    options = parse(["-m", "pkg.train", "--help"])
    assert options.module
    assert (options.program, options.arguments) == ("pkg.train", ["--help"])
    assert options.replace == {"gloo", "nccl"}


@pytest.mark.parametrize("text", ["", "gloo,", "ringcomm", "cpu:gloo"])
def test_bad_names_are_told(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a backend to replace"):
        parse_names(text)


def test_missing_script_is_told(capsys):
    assert main(["no_such_script.py"]) == 2
    assert "there is no script 'no_such_script.py'" in capsys.readouterr().err
