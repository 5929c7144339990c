"""The creator that torch.distributed calls, and its registration."""

from __future__ import annotations

import atexit
import ipaddress
import os
from typing import Any

import torch.distributed as dist

from ringcomm import _C
from ringcomm.options import from_environment

NAME = "ringcomm"


def create(distributed: Any, pg_options: Any) -> _C.RingBackend:
    """Makes the backend of one process group; blocks until all its ranks are there.

    Args:
        distributed: torch's description of the group (store, group rank and size, timeout, id).
        pg_options: None, or a `ringcomm.Options`. What it sets holds against the environment;
            what it does not set is the environment's, or the default.

    Raises:
        TypeError: pg_options belong to another backend.
        ValueError: an option's value is not allowed.
        DistBackendError: ranks are missing after the timeout; the text names them.

    Warns:
        UserWarning: an option of pg_options is the process's, whose first group has another value.
    """
    if pg_options is None:
        pg_options = _C.Options()
    elif not isinstance(pg_options, _C.Options):
        raise TypeError(
            f"pg_options must be a ringcomm.Options or None, not {type(pg_options).__name__}"
        )
    options = from_environment(distributed.timeout)
    options.adopt(pg_options)
    options.group_name = distributed.group_id
    members = list(distributed.global_ranks_in_group)
    options.global_ranks_in_group = members or list(range(distributed.group_size))
    return _C.RingBackend(
        store=distributed.store,
        rank=distributed.group_rank,
        size=distributed.group_size,
        options=options,
        group_name=distributed.group_id,
        route_to=_store_host(),
        local_ranks=_positive(os.environ.get("LOCAL_WORLD_SIZE", "")),
    )


def register() -> None:
    """Makes the name "ringcomm" known to torch.distributed; harmless when it is known already."""
    if NAME not in dist.Backend.backend_list:
        atexit.register(_C.prepare_exit)
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])


def _store_host() -> str:
    """The address of the store's host, where the environment gives one: all ranks reach it."""
    host = os.environ.get("MASTER_ADDR", "")
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return ""  # a name: what it resolves to is nothing to rely on


def _positive(text: str) -> int:
    return int(text) if text.isdecimal() and int(text) > 0 else 1
