"""A torch.distributed backend for the GPUs and networks that people have.

    import ringcomm
    torch.distributed.init_process_group("ringcomm")

Importing registers the backend; on torch 2.14 and later, torch finds it by itself.
"""

from __future__ import annotations

import torch

from ringcomm._version_check import check_torch

check_torch(torch.__version__)

from ringcomm import _C, flight_recorder  # noqa: E402
from ringcomm.backend import register as _register  # noqa: E402

Options = _C.Options

__all__ = ["Options", "__version__", "flight_recorder"]
__version__ = "0.1.0"

_register()
