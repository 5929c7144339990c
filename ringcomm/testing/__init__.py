"""Start several ranks on this machine, over loopback, and collect what they return.

Example:
    A module that can be imported has ``def total() -> float``, which makes a process group from
    the environment, reduces and returns a number; then ``spawn(total, nprocs=2)`` is the list of
    what ranks 0 and 1 returned, and a rank that fails or hangs is a ``SpawnError`` that names it.
"""

from ringcomm.testing.ranks import rank_environment, reserve_port
from ringcomm.testing.spawning import RankFailure, SpawnError, spawn

__all__ = ["RankFailure", "SpawnError", "rank_environment", "reserve_port", "spawn"]
