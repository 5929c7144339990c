"""What a rank finds in its environment: its place in the job, and where the job's store is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def reserve_port() -> Iterator[int]:
    """Yield a free TCP port of loopback that nobody else is given while the context is open.

    The socket that holds the port is bound but does not listen, and allows its address to be
    reused: rank 0 can listen there, while the kernel gives the port to no other caller that
    asks for a free one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, 0))
        yield int(holder.getsockname()[1])


def rank_environment(rank: int, nprocs: int, port: int) -> dict[str, str]:
    """Return the variables that rank ``rank`` of ``nprocs`` on this machine needs.

    Args:
        rank: the rank, from 0 to ``nprocs - 1``.
        nprocs: the number of ranks, at least 1.
        port: the port on which rank 0 shall open the job's store.

    Raises:
        ValueError: ``rank`` or ``nprocs`` is out of range.
    """
    if nprocs < 1:
        raise ValueError(f"nprocs is {nprocs}, must be at least 1")
    if not 0 <= rank < nprocs:
        raise ValueError(f"rank is {rank}, must be from 0 to {nprocs - 1}")
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(nprocs),
        "LOCAL_WORLD_SIZE": str(nprocs),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        # As torchrun does: ranks that share the cores should not each start a thread for every one.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    if sys.platform == "linux":
        # Gloo otherwise uses whatever the host's own name resolves to, if it resolves at all.
        environment["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return environment


def forget_launcher(environment: dict[str, str]) -> dict[str, str]:
    """Return ``environment`` without what torchrun set for the process that starts the ranks."""
    return {k: v for k, v in environment.items() if not k.startswith("TORCHELASTIC_")}


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends. Linux only."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
