"""Options: their table, values and names that are refused, the environment."""

import copy
import itertools
from datetime import timedelta

import pytest
import torch.distributed as dist

import ringcomm
from ringcomm import _C
from ringcomm.options import from_environment, names

NUMBERS = {
    "progress_threads": (0, 64),
    "port": (0, 65535),
    "socket_buffer_bytes": (0, 2**30),
    "spin_micros": (0, 1_000_000),
    "lanes": (1, 64),
    "slice_bytes": (4096, 2**20),
    "direct_bytes": (0, 2**40),
    "scatter_gather_bytes": (0, 2**40),
}


def test_table_explains_every_option():
    table = _C.option_table()
    assert [row[0] for row in table] == names()
    assert len(set(names())) == len(names()) > 10
    for name, scope, preset, text in table:
        assert scope in ("P", "L", "G")
        assert len(text) > 10
        ringcomm.Options(**{name: preset})  # the default is an allowed value


@pytest.mark.parametrize("name", NUMBERS)
def test_range_of_a_number(name):
    least, greatest = NUMBERS[name]
    ringcomm.Options(**{name: least})
    ringcomm.Options(**{name: str(greatest)})
    for bad in (least - 1, greatest + 1, "", "x", "1.5", "3 ", "0x10", None, True, 2**70):
        with pytest.raises(ValueError, match=f"{name} is .*from {least} to {greatest}"):
            ringcomm.Options(**{name: bad})


def test_unknown_name_lists_all():
    with pytest.raises(ValueError, match="no option 'lane'") as error:
        ringcomm.Options(lane=2)
    assert all(name in str(error.value) for name in names())


def test_set_refuses_and_keeps_what_was():
    options = ringcomm.Options(lanes=2)
    options.set("lanes", 3)
    with pytest.raises(ValueError, match="lanes is '0'"):
        options.set("lanes", 0)
    with pytest.raises(ValueError, match="no option 'speed'"):
        options.set("speed", "high")


def test_timeout_and_copies():
    options = ringcomm.Options(timeout=timedelta(seconds=7), lanes=2)
    assert options._timeout == timedelta(seconds=7)
    assert options.backend == "ringcomm"
    assert copy.deepcopy(options)._timeout == timedelta(seconds=7)
    assert ringcomm.Options()._timeout == dist.default_pg_timeout


def test_environment(monkeypatch):
    monkeypatch.setenv("RINGCOMM_SLICE_BYTES", "8192")
    monkeypatch.setenv("RINGCOMMX", "is none of ours")
    assert from_environment(timedelta(seconds=3))._timeout == timedelta(seconds=3)


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("RINGCOMM_LANES", "0", "option lanes is '0', but must be a whole number from 1 to 64"),
        ("RINGCOMM_LANES", "", "option lanes is ''"),
        ("RINGCOMM_LANE", "1", "no option 'lane'"),
        ("RINGCOMM_SLICE_BYTES", "64K", "option slice_bytes is '64K'"),
    ],
)
def test_bad_environment_is_refused(monkeypatch, variable, value, text):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=text):
        from_environment(timedelta(seconds=3))


@pytest.mark.parametrize("variable", ["RINGCOMM_LANES", "RINGCOMM_TYPO"])
def test_bad_environment_ends_init_process_group(monkeypatch, variable):
    monkeypatch.setenv(variable, "-5")
    with pytest.raises(ValueError, match=variable.removeprefix("RINGCOMM_").lower()):
        dist.init_process_group("ringcomm", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()
    monkeypatch.delenv(variable)
    dist.init_process_group("ringcomm", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


def test_algorithm_table_covers_all_sizes():
    for world in (1, 2, 3, 8, 100):
        table = _C.algorithm_table(world, ringcomm.Options())
        for collective in ("all_reduce", "broadcast", "all_gather", "barrier"):
            rows = [row for row in table if row[0] == collective]
            assert rows[0][1] == 0
            assert rows[-1][2] == 2**64 - 1
            for before, after in itertools.pairwise(rows):
                assert after[1] == before[2] + 1


def test_instruction_sets():
    assert _C.isas()[0] == "scalar"
    assert set(_C.isas()) <= {"scalar", "avx2", "avx512", "neon"}
