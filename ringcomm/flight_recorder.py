"""The last calls of the backend: what each rank was doing when a job stands still.

Each process keeps its last 2000 calls, or as many as TORCH_FR_BUFFER_SIZE says; 0 keeps none. Where
that variable is set, the Python stack of each call is kept as well. Torch's own recorder cannot be
reached from outside its libraries, so ``torch._C._distributed_c10d._dump_fr_trace`` does not show
these calls; `dump` gives them in its format, together with what torch itself has recorded.

    ringcomm.flight_recorder.write("/tmp/traces/rank_")  # on every rank
    torchfrtrace /tmp/traces --prefix rank_              # once, anywhere
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ringcomm import _C

# Torch's analyser knows the names of some libraries and refuses others.
KNOWN_NAME = "gloo:"


def calls(stacks: bool = True) -> list[dict[str, Any]]:
    """The calls of this process, oldest first.

    Args:
        stacks: whether to look up the names of the frames, which takes a while.

    Returns:
        One dict a call: ``profiling_name`` ("ringcomm:all_reduce", "ringcomm:send 0->1"),
        ``process_group`` (name, description), ``ranks`` of that group in the whole job,
        ``collective_seq_id`` and ``p2p_seq_id`` (how many there were in the group, this one
        included), ``op_id``, ``is_p2p``, ``input_sizes``, ``input_dtypes``, ``output_sizes``,
        ``output_dtypes``, ``state`` (started, completed or failed), ``error`` of a failed one,
        ``time_created_ns`` and ``time_ended_ns`` since the epoch (0: not ended), ``duration_ms``,
        ``timeout_ms``, ``thread_name``, ``frames`` (innermost first).
    """
    return _C.recorded_calls(stacks)


def dump(stacks: bool = True) -> bytes:
    """The calls as torch's flight recorder dumps them: what ``torchfrtrace`` reads.

    Torch's analyser accepts the names of some libraries only, so the calls are called "gloo:..."
    here, and one that failed is one that was never completed.
    """
    merged: dict[str, Any] = pickle.loads(c10d._dump_fr_trace(True, stacks, False))  # type: ignore[attr-defined]
    entries = list(merged.get("entries", []))
    groups = dict(merged.get("pg_config", {}))
    for call in calls(stacks):
        name, description = call["process_group"]
        ranks = ", ".join(str(rank) for rank in call["ranks"])
        groups[name] = {"name": name, "desc": description, "ranks": f"[{ranks}]"}
        entries.append(_entry(call))
    entries.sort(key=lambda entry: entry["time_created_ns"])
    return pickle.dumps({**merged, "entries": entries, "pg_config": groups})


def write(prefix: str | os.PathLike[str] | None = None, stacks: bool = True) -> Path:
    """Writes `dump` to the file that is called `prefix` and the rank in the job.

    Args:
        prefix: path and beginning of the file's name, the same on all ranks. None: what
            TORCH_FR_DUMP_TEMP_FILE says, or /tmp/ringcomm_trace_rank_.
        stacks: as for `calls`.

    Returns:
        The file's path.
    """
    if prefix is None:
        prefix = os.environ.get("TORCH_FR_DUMP_TEMP_FILE", "/tmp/ringcomm_trace_rank_")
    rank = dist.get_rank() if dist.is_initialized() else os.environ.get("RANK", "0")
    path = Path(f"{os.fspath(prefix)}{rank}")
    path.write_bytes(dump(stacks))
    return path


def _entry(call: dict[str, Any]) -> dict[str, Any]:
    entry = {key: value for key, value in call.items() if key not in ("ranks", "error")}
    completed = call["state"] == "completed"
    return {
        **entry,
        "pg_id": 0,
        "thread_id": "",
        "profiling_name": call["profiling_name"].replace("ringcomm:", KNOWN_NAME, 1),
        "state": "completed" if completed else "started",
        "time_discovered_started_ns": call["time_created_ns"],
        "time_discovered_completed_ns": call["time_ended_ns"] if completed else None,
        "retired": call["state"] != "started",
    }
