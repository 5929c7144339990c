"""Entry point of ``python -m ringcomm``: picks a command and imports only that one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "bench": "measure collectives, in a table as nccl-tests prints it",
    "demo": "train a small GPT on two ranks over ringcomm, then over gloo, side by side",
    "options": "explain the backend's options and their defaults",
    "run": "run an unmodified script with ringcomm in place of gloo or nccl",
}


def usage() -> str:
    """Return the text of ``python -m ringcomm --help``."""
    lines = ["usage: python -m ringcomm COMMAND [options]", "", "commands:"]
    lines += [f"  {name:<8}{text}" for name, text in COMMANDS.items()]
    lines += ["", "python -m ringcomm COMMAND --help shows a command's options."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (default: the process's arguments) names.

    Returns:
        The exit status: 0, or the command's own, or 2 for a command that does not exist.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["-h"], ["--help"]):
        print(usage())
        return 0
    if not arguments:
        print(usage(), file=sys.stderr)
        return 2
    name = arguments[0]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"ringcomm: no command {name!r}; there are {known}", file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"ringcomm.cli.{name}").main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
