"""Options of the backend, from the environment and from what the user gives."""

from __future__ import annotations

import os
from datetime import timedelta

from ringcomm import _C

ENVIRONMENT_PREFIX = "RINGCOMM_"


def names() -> list[str]:
    """The names of all options, as `python -m ringcomm options` explains them."""
    return [row[0] for row in _C.option_table()]


def from_environment(timeout: timedelta) -> _C.Options:
    """Options with what the environment says: RINGCOMM_LANES=2 sets ``lanes``.

    Args:
        timeout: limit of each operation that brings none of its own.

    Raises:
        ValueError: a variable's value is not allowed; the text says which and why. Also for a
            variable RINGCOMM_... that is no option, since it is most likely misspelt.
    """
    options = _C.Options(timeout=timeout)
    for variable, value in os.environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            options.set(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), value)
    return options
