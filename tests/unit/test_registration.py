"""That torch knows the backend: by import, by entry point, by device, and only once."""

import importlib
import importlib.metadata
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import ringcomm
from ringcomm._version_check import check_torch


@pytest.fixture
def one_rank():
    yield lambda backend: dist.init_process_group(
        backend, store=dist.HashStore(), rank=0, world_size=1
    )
    if dist.is_initialized():
        dist.destroy_process_group()


def run(code, **arguments):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, **arguments
    )


@pytest.mark.smoke
def test_backend_is_registered_for_cpu_and_cuda():
    assert "ringcomm" in dist.Backend.backend_list
    assert dist.is_backend_available("ringcomm")
    assert dist.Backend.backend_capability["ringcomm"] == ["cpu", "cuda"]
    assert dist.Backend("RINGCOMM") == "ringcomm"


def test_registering_twice_is_harmless():
    before = list(dist.Backend.backend_list)
    ringcomm._register()
    importlib.reload(ringcomm)
    assert dist.Backend.backend_list == before
    assert before.count("ringcomm") == 1


def test_default_backend_of_a_device_stays_torch_s():
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"
    assert dist.Backend.default_device_backend_map["cuda"] == "nccl"


def test_entry_point_names_the_registration():
    (point,) = importlib.metadata.entry_points(group="torch.distributed.backends", name="ringcomm")
    assert point.value == "ringcomm:_register"
    assert point.load() is ringcomm._register


def test_version_is_the_distribution_s():
    assert ringcomm.__version__ == importlib.metadata.version("ringcomm")


@pytest.mark.parametrize(
    ("backend", "cpu"),
    [
        ("ringcomm", "ringcomm"),
        ("cpu:ringcomm", "ringcomm"),
        ("cpu:ringcomm,cuda:ringcomm", "ringcomm"),
        ("cpu:gloo,cuda:ringcomm", "gloo"),
    ],
)
def test_backend_names(one_rank, backend, cpu):
    one_rank(backend)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0] * 3
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == cpu


def test_same_torch_passes():
    check_torch(torch.__version__)


@pytest.mark.parametrize("running", ["2.99.0", "3.13.0+cpu", "2.1.3"])
def test_another_torch_is_refused_with_both_versions_and_what_to_do(running):
    from ringcomm._build_info import TORCH_VERSION

    with pytest.raises(ImportError, match="pip install") as error:
        check_torch(running)
    assert f"built for torch {TORCH_VERSION}, but torch {running} is installed" in str(error.value)


def test_missing_build_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ringcomm._build_info", None)
    with pytest.raises(ImportError, match=r"not built: run `pip install"):
        check_torch(torch.__version__)


def test_import_starts_no_thread_and_opens_no_socket():
    code = (
        "import os, torch.distributed\n"
        "count = lambda: (len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')))\n"
        "before = count()\n"
        "import ringcomm\n"
        "assert count() == before, (before, count())\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.smoke
@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 14),
    reason="torch loads backends by entry point from 2.14 on",
)
def test_torch_finds_the_backend_without_an_import():
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('ringcomm', store=dist.HashStore(), rank=0, world_size=1)\n"
        "x = torch.ones(2); dist.all_reduce(x)\n"
        "assert dist.get_backend() == 'ringcomm' and 'ringcomm' in sys.modules\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
