"""Have torch.distributed make groups of one backend where a program asks for another.

``install`` wraps the functions that take a backend's name. What it does not catch:

* a program's own decisions: ``if dist.get_backend() == "nccl"`` now takes the other branch, and
  ``dist.is_nccl_available()`` still answers for NCCL;
* groups that are not made through torch.distributed: ``ProcessGroupNCCL(...)`` constructed
  directly, ``torch.cuda.nccl``, NCCL used by another library;
* a reference to one of these functions that was kept, before ``install``, anywhere but in a
  module's top-level names;
* other programs that the program starts; processes of ``multiprocessing`` are caught.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_FUNCTIONS = ("init_process_group", "new_group", "split_group")


def replace_name(name: str, replaced: Collection[str], target: str) -> str:
    """Return the backend string ``name`` with every name in ``replaced`` exchanged for ``target``.

    ``name`` is what torch accepts: one name, or pairs such as ``cpu:gloo,cuda:nccl``. Where all
    pairs come to be ``target``, the result is ``target`` alone, which serves every device.
    """
    pairs = [part.strip().rpartition(":") for part in name.lower().split(",")]
    names = [target if backend.strip() in replaced else backend for _, _, backend in pairs]
    if target not in names:
        return name
    if all(backend == target for backend in names):
        return target
    joined = zip(pairs, names, strict=True)
    return ",".join(device + colon + backend for (device, colon, _), backend in joined)


def _default_name(device_id: Any) -> str:
    """Return the backend that torch takes when no name is given."""
    if isinstance(device_id, torch.device):
        device = device_id.type
    else:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        device = "cpu" if accelerator is None else accelerator.type
    return dist.Backend.default_device_backend_map.get(device, "")


class Replacement:
    """The wrapped functions, and what they stood for. Use it from one thread."""

    def __init__(self, replaced: Collection[str], target: str, quiet: bool = True) -> None:
        self.replaced, self.target = frozenset(replaced), target
        self._quiet = quiet or os.environ.get("RANK", "0") != "0"
        self._patched: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        """Put the wrappers in the place of torch's functions in every module loaded so far."""
        for name in _FUNCTIONS:
            original = getattr(distributed_c10d, name)
            wrapper = self._wrap(original)
            for module in list(sys.modules.values()):
                if getattr(module, "__dict__", {}).get(name) is original:
                    self._patch(module, name, wrapper)
        self._patch(multiprocessing.spawn, "get_preparation_data", self._prepare_child())

    def remove(self) -> None:
        """Put back what ``install`` replaced."""
        for owner, name, before in reversed(self._patched):
            setattr(owner, name, before)
        self._patched.clear()

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        self._patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            self._rewrite(original.__name__, bound.arguments)
            return original(*bound.args, **bound.kwargs)

        return wrapper

    def _rewrite(self, function: str, arguments: dict[str, Any]) -> None:
        """Exchange the backend among the arguments, and drop options meant for the other one."""
        asked = arguments.get("backend")
        name = asked
        if name is None and function == "init_process_group":
            name = _default_name(arguments.get("device_id"))
        if name is None:  # a new group takes the default group's backend
            if dist.is_initialized() and dist.get_backend() == self.target:
                self._drop_options(function, arguments)
            return
        now = replace_name(name, self.replaced, self.target) if isinstance(name, str) else name
        if now != name:
            arguments["backend"] = now
            self._say(f"{function}({'' if asked is None else repr(asked)}) uses {now!r}")
            self._drop_options(function, arguments)

    def _drop_options(self, function: str, arguments: dict[str, Any]) -> None:
        """Drop torch's own option objects: they belong to the backend that was replaced."""
        options = arguments.get("pg_options")
        if type(options).__module__.partition(".")[0] == "torch":
            del arguments["pg_options"]
            self._say(f"{function}: leaves out pg_options of type {type(options).__qualname__}")

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(f"ringcomm run: {text}", file=sys.stderr)

    def _prepare_child(self) -> Callable[[str], dict[str, Any]]:
        """Wrap what multiprocessing sends to a new interpreter before it imports the program."""
        original: Any = multiprocessing.spawn.get_preparation_data
        carried = _InChild(self.replaced, self.target)

        def get_preparation_data(name: str) -> dict[str, Any]:
            return {**original(name), "ringcomm": carried}

        return get_preparation_data


def install(replaced: Collection[str], target: str, quiet: bool = True) -> Replacement:
    """Make groups asked for under a name in ``replaced`` groups of ``target`` from now on.

    Args:
        replaced: backends' names in lower case, such as ``{"gloo", "nccl"}``.
        target: the registered backend to use instead.
        quiet: do not report each replacement on rank 0's stderr.

    Returns:
        The replacement, whose ``remove`` undoes it.
    """
    replacement = Replacement(replaced, target, quiet)
    replacement.install()
    return replacement


class _InChild:
    """Calls ``install`` where it is unpickled: in a new process, before the program's import."""

    def __init__(self, replaced: Collection[str], target: str) -> None:
        self._arguments = (frozenset(replaced), target)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _install_in_child, self._arguments


def _install_in_child(replaced: Collection[str], target: str) -> None:
    from ringcomm.cli.backends import require_backend

    require_backend(target)
    install(replaced, target)
