"""What has to happen when a call is wrong, on one rank or between ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist.worker import group, place


def raw() -> Any:
    """The backend itself: torch's own functions check some arguments before it sees them."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def assert_group_works() -> None:
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [float(place().world)] * 3


def assert_refused(call: Callable[[], Any], text: str) -> None:
    """The calling rank alone gets an error that names the argument, and the group goes on."""
    with pytest.raises((ValueError, TypeError), match=text) as error:
        call()
    assert str(error.value).startswith("ringcomm: ")
    assert_group_works()


def assert_told(call: Callable[[int], Any], text: str, times: int = 2) -> None:
    """In a group of its own, each rank raises within a second, and names both ranks and calls."""

    def then_meet() -> None:
        call(place().rank)
        dist.barrier()  # who only sends may have done its part

    with group():
        dist.barrier()
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=r"(?s)rank 0.*rank 1|rank 1.*rank 0") as error:
            then_meet()
        assert time.monotonic() - start < 1
        assert str(error.value).count(text) >= times
