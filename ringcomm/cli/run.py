"""``python -m ringcomm run``: run an unmodified program over ringcomm.

What the replacement catches, and what it does not, is documented in ``ringcomm.cli.replace``.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ringcomm.cli.backends import BackendError, require_backend

_TARGET = "ringcomm"


def parse_names(text: str) -> frozenset[str]:
    """Return the backends' names in a list such as ``gloo,nccl``, in lower case.

    Raises:
        argparse.ArgumentTypeError: a name is empty, or is the replacement itself.
    """
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if not name.isidentifier() or name == _TARGET:
            raise argparse.ArgumentTypeError(
                f"{name!r} in {text!r} is not a backend to replace; such are gloo, nccl"
            )
    return frozenset(names)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command's options; what follows the program's name belongs to the program."""
    parser = argparse.ArgumentParser(
        prog="python -m ringcomm run",
        usage="python -m ringcomm run [--replace NAMES] [-q] (SCRIPT | -m MODULE) [ARGUMENTS ...]",
        description="Run a program as python would, with ringcomm wherever it asks "
        "torch.distributed for one of the named backends, or for none by name. Start several "
        "ranks with: torchrun --nproc-per-node 2 -m ringcomm run SCRIPT. Not caught: the "
        "program's own comparisons with a backend's name, NCCL used other than through "
        "torch.distributed, and further programs that it starts.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--replace",
        type=parse_names,
        default="gloo,nccl",
        metavar="NAMES",
        help="backends to replace, default %(default)s",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="do not report replacements")
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="a script's path, or with -m a module's name")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    return parser.parse_args(argv)


def run_program(program: str, arguments: Sequence[str], module: bool) -> None:
    """Run a script or module as ``__main__``, with the sys.argv and sys.path it expects."""
    sys.argv = [program, *arguments]
    if module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    # `python -m` put the working directory there, `python script.py` puts the script's folder.
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


def main(argv: Sequence[str]) -> int:
    """Run the program; its exceptions and exit status are its own."""
    options = parse(argv)
    try:
        require_backend(_TARGET)
    except BackendError as error:
        print(f"ringcomm run: {error}", file=sys.stderr)
        return 1
    if not options.module and not Path(options.program).exists():
        print(f"ringcomm run: there is no script {options.program!r}", file=sys.stderr)
        return 2
    from ringcomm.cli.replace import install

    install(options.replace, _TARGET, options.quiet)
    run_program(options.program, options.arguments, options.module)
    return 0
