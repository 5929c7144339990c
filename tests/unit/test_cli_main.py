"""The choice of a command."""

import importlib
import io

import pytest
from rich.console import Console

from ringcomm.__main__ import COMMANDS, main
from ringcomm.cli.options import option_table


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_no_command_shows_the_usage(capsys):
    assert main([]) == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: python -m ringcomm COMMAND")
    assert all(text in error for text in COMMANDS.values())


def test_unknown_command_is_named(capsys):
    assert main(["bnech", "--help"]) == 2
    assert capsys.readouterr().err == (
        "ringcomm: no command 'bnech'; there are bench, demo, options, run\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_command_shows_its_own_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"python -m ringcomm {name}" in capsys.readouterr().out


def test_command_gets_its_arguments_and_gives_its_status(monkeypatch):
    seen = []
    module = importlib.import_module("ringcomm.cli.demo")
    monkeypatch.setattr(module, "main", lambda argv: seen.append(argv) or 5)
    assert main(["demo", "--steps", "3"]) == 5
    assert seen == [["--steps", "3"]]


def test_options_are_explained():
    out = Console(file=io.StringIO(), width=80)
    out.print(option_table([("lanes", "G", "1", "connections a neighbour")]))
    assert all(part in out.file.getvalue() for part in ("lanes", "group", "connections"))
