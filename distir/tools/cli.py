"""`distir`: the command line. Each command has its own file in `commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

from distir.errors import did_you_mean
from distir.version import __version__

COMMANDS = {
    "import": ("import_model", "read a model from ONNX, PyTorch or transformers"),
    "build": ("build", "make an MLP or a GPT of any size, without weights"),
    "schedule": ("schedule", "write into a program what a script asks for"),
    "distribute": ("distribute", "distribute a program over a cluster"),
    "show": ("show", "show how a program is split and what its devices send"),
    "simulate": ("simulate", "predict step time, memory and communication"),
    "search": ("search", "find the best way to distribute a program"),
    "check": ("check", "compare two programs on the same inputs"),
    "lower": ("lower", "write the PyTorch package that runs a program"),
    "run": ("run", "run a program on real processes"),
    "export": ("export", "write weights or a plan for other programs"),
    "cluster": ("cluster", "describe a cluster from a few numbers"),
    "calibrate": ("calibrate", "measure this machine and write a profile of it"),
}
"""For each command its module in `distir.tools.commands` and what it does."""


class Command(Protocol):
    """The interface of a module in `distir.tools.commands`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the command's arguments."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Runs the command and returns the exit code."""
        ...


class _Parser(argparse.ArgumentParser):
    """
    Reports errors in one paragraph, which names what the user may have meant and the command
    whose help says more.
    """

    def parse_known_args(self, *args: Any, **named: Any) -> Any:
        """
        Parses arguments. The parser of the innermost command refuses those that it does not
        know: it is the one whose help lists what there is.
        """
        found, unknown = super().parse_known_args(*args, **named)
        if unknown and self._subparsers is None:
            self.refuse(unknown[0])
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see `{self.prog} --help`\n")

    def refuse(self, unknown: str) -> NoReturn:
        """Ends with a message about an argument that this parser does not know."""
        options = [
            option for action in self._actions for option in action.option_strings
        ]
        meant = did_you_mean(unknown.split("=")[0], options).rstrip("? ")
        self.error(f"there is no argument {unknown}{f'; {meant}' if meant else ''}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a value that is not among those to choose from."""
        choices = action.choices
        if choices is not None and value not in choices:
            names = [str(choice) for choice in choices]
            raise argparse.ArgumentError(
                action,
                f"invalid choice: {str(value)!r}; {did_you_mean(str(value), names)}"
                f"choose from {', '.join(names)}",
            )


def _command(name: str) -> Command:
    module_name, _ = COMMANDS[name]
    return cast(Command, import_module(f"distir.tools.commands.{module_name}"))


def argument_parser(only: str | None = None) -> argparse.ArgumentParser:
    """
    Returns the parser of the command line, with the arguments of all commands, or only of
    the one called `only`: each command is imported for it, which takes as long as
    everything else.
    """
    parser = _Parser(
        prog="distir",
        description="Distributes neural networks over clusters, on paper and for real.",
    )
    parser.add_argument("--version", action="version", version=f"distir {__version__}")
    commands: Any = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND"
    )
    for name, (_, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if only in (None, name):
            _command(name).add_arguments(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Runs a command and returns its exit code; errors are one paragraph on stderr and exit
    code 1.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parsed = argument_parser("".join(arguments[:1])).parse_args(arguments)

    from distir.tools.reports.reporting import run_reporting_errors

    return run_reporting_errors(lambda: _command(parsed.command).run(parsed))


if __name__ == "__main__":
    sys.exit(main())
