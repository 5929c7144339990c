"""nccl-tests' definitions of bandwidth."""

import pytest

from ringcomm.cli.bandwidth import bandwidths, bus_factor
from ringcomm.cli.bench_ops import OPS


@pytest.mark.parametrize(
    ("op", "world", "factor"),
    [
        ("all_reduce", 1, 0.0),
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_reduce_coalesced", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("gather", 4, 0.75),
        ("scatter", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("reduce", 4, 1.0),
        ("sendrecv", 4, 1.0),
        ("barrier", 4, 0.0),
    ],
)
def test_bus_factor(op, world, factor):
    assert bus_factor(op, world) == factor


def test_every_operation_has_a_factor():
    assert all(0 <= bus_factor(op, 3) <= 4 / 3 for op in OPS)


def test_bandwidths_are_in_gigabytes_of_ten_to_the_nine():
    assert bandwidths("all_reduce", 4, 2_000_000_000, 2.0) == (1.0, 1.5)


def test_unknown_operation_and_world_are_named():
    with pytest.raises(ValueError, match="operation 'scan' has no bandwidth factor"):
        bus_factor("scan", 2)
    with pytest.raises(ValueError, match="world is 0, must be at least 1"):
        bus_factor("broadcast", 0)
