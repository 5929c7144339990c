"""Message sizes on the command line."""

import argparse

import pytest

from ringcomm.cli.sizes import align_sizes, format_size, parse_size, parse_sizes, size_range


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4", 4),
        ("64K", 65536),
        ("64k", 65536),
        ("64KiB", 65536),
        ("64KB", 65536),
        ("1.5M", 1572864),
        (" 2 G ", 2 << 30),
        ("512B", 512),
    ],
)
def test_parse_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-4", "4T", "1e6", "0", "0.3", "1.0001K", "4 4"])
def test_parse_size_names_what_it_rejects(text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"size '{text}'"):
        parse_size(text)


def test_parse_sizes_keeps_the_order():
    assert parse_sizes("1M,4,64K") == [1 << 20, 4, 65536]


def test_size_range_ends_at_the_largest():
    assert size_range(4, 64, 4) == [4, 16, 64]
    assert size_range(4, 63, 4) == [4, 16]
    assert size_range(8, 8, 2) == [8]


def test_size_range_rejects_what_would_not_end():
    with pytest.raises(ValueError, match="factor between sizes is 1, must be at least 2"):
        size_range(4, 64, 1)
    with pytest.raises(ValueError, match="smallest size, 65, is above the largest, 64"):
        size_range(65, 64, 2)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (1, "1"), (1000, "1000"), (1024, "1K"), (3 << 20, "3M")]
)
def test_format_size(size, text):
    assert format_size(size) == text


def test_align_sizes_rounds_down_and_drops_repeats():
    assert align_sizes([4, 8, 13, 26, 27], 12) == [12, 24]
