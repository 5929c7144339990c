"""Refuses to load the extension under another torch than it was built for."""

from __future__ import annotations


def check_torch(running: str) -> None:
    """Raises ImportError unless `running` has the minor version that `_C` was compiled against.

    torch's C++ classes change from one minor version to the next: loading the extension under
    another one would crash or misbehave, in ways that tell nobody why.
    """
    try:
        from ringcomm._build_info import TORCH_VERSION
    except ImportError:
        raise ImportError(
            "ringcomm is not built: run `pip install --no-build-isolation -e .` in its folder"
        ) from None
    if _minor(running) != _minor(TORCH_VERSION):
        raise ImportError(
            f"ringcomm was built for torch {TORCH_VERSION}, but torch {running} is installed: "
            "reinstall it with `pip install --force-reinstall --no-deps --no-build-isolation "
            "ringcomm` (from a checkout: `pip install --no-build-isolation -e .`)"
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
