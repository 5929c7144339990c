"""PEP 517 backend: setuptools, building against the torch of the environment that pip runs in.

The extension works only with the torch minor it was compiled for. An isolated build that asked
for "torch" would compile against whatever is newest today and then fail at import, and would
download gigabytes to do so. So the torch that is already installed is used where it lies, and only
where there is none is one fetched; setup.py then pins that minor in the package's dependencies.
"""

from __future__ import annotations

import re
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import setuptools
from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  (the rest of the backend's interface)
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
)

TORCH_MIN, TORCH_END = (2, 11), (2, 15)
TORCH_RANGE = f"torch>={TORCH_MIN[0]}.{TORCH_MIN[1]},<{TORCH_END[0]}.{TORCH_END[1]}"

if int(setuptools.__version__.split(".")[0]) < 77:  # pyproject.toml names its licence by PEP 639
    sys.exit(
        f"ringcomm needs setuptools 77 or newer, not {setuptools.__version__}: "
        "run pip install -U setuptools ninja first, or leave out --no-build-isolation."
    )


class Torch(NamedTuple):
    """An installed torch: its folder, its full version and its (major, minor)."""

    folder: Path
    version: str
    minor: tuple[int, int]


def find_torch() -> Torch | None:
    """Finds torch without importing it (seconds, and impossible from an isolated build)."""
    paths = [*sys.path, sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    if site.ENABLE_USER_SITE:
        paths.append(site.getusersitepackages())
    for path in paths:
        version_file = Path(path or ".", "torch", "version.py")
        if not version_file.is_file():
            continue
        found = re.search(r"__version__ = '((\d+)\.(\d+)[^']*)'", version_file.read_text())
        if found:
            minor = (int(found[2]), int(found[3]))
            return Torch(version_file.parent.resolve(), found[1], minor)
    return None


def require_torch() -> Torch:
    """Finds a torch that ringcomm can be compiled against, or ends with what to do."""
    torch = find_torch()
    if torch is None:
        sys.exit(
            "ringcomm is compiled against the torch that you use: "
            f"install torch first (pip install '{TORCH_RANGE}')."
        )
    if not TORCH_MIN <= torch.minor < TORCH_END:
        sys.exit(f"ringcomm needs {TORCH_RANGE}, but torch {torch.version} is installed.")
    return torch


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Asks for a torch to build against where the environment has none."""
    return [] if find_torch() else [TORCH_RANGE]


get_requires_for_build_editable = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(directory: str, config_settings: Any = None) -> str:
    """Fails here where torch is missing, before pip downloads any dependency."""
    require_torch()
    return build_meta.prepare_metadata_for_build_wheel(directory, config_settings)


def prepare_metadata_for_build_editable(directory: str, config_settings: Any = None) -> str:
    """As for a wheel."""
    require_torch()
    return build_meta.prepare_metadata_for_build_editable(directory, config_settings)
