"""Find the torch.distributed backend that a command was asked for, or say what is missing."""

from __future__ import annotations

import importlib
import importlib.util


class BackendError(RuntimeError):
    """PyTorch or a backend is missing; the text says which and why."""


def require_torch() -> None:
    """Raise BackendError unless torch with torch.distributed can be imported."""
    if importlib.util.find_spec("torch") is None:
        raise BackendError("PyTorch is missing: pip install torch")
    import torch.distributed as dist

    if not dist.is_available():
        raise BackendError("this build of PyTorch has no torch.distributed")


def require_backend(name: str) -> None:
    """Make sure that torch knows the backend ``name``; import the module so called if it does not.

    Raises:
        BackendError: torch or the backend is missing.
    """
    require_torch()
    import torch.distributed as dist

    if dist.is_backend_available(name):
        return
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise BackendError(
            f"torch has no backend {name!r}, and importing {name!r} failed: {error}"
        ) from error
    if not dist.is_backend_available(name):
        raise BackendError(f"importing {name!r} did not register a backend of that name")
