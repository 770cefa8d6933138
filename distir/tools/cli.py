"""`distir`: the command line. Each command has a module of its own in `commands`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

from distir.errors import did_you_mean
from distir.system.garbage import (
    collect_rarely_until_exit,
    rare_garbage_collection,
)
from distir.version import __version__

GROUPS = {
    "get started": {
        "demo": ("demo", "show the main steps on a model that is built here"),
        "doctor": ("doctor", "say what is installed, and what to do next"),
    },
    "get a model": {
        "import": ("import_model", "read a model from ONNX, PyTorch or transformers"),
        "build": (
            "build",
            "make a GPT, a LLaMA or another known model, without weights",
        ),
    },
    "describe the hardware": {
        "cluster": ("cluster", "describe a cluster from a few numbers"),
        "calibrate": ("calibrate", "measure this machine and write a profile of it"),
    },
    "find a plan": {
        "search": ("search", "find the best way to distribute a program"),
        "serve-plan": (
            "serve_plan",
            "find the best plan for a service that generates tokens",
        ),
        "plan": (
            "plan",
            "predict runs from arguments of Megatron, DeepSpeed, ...",
        ),
    },
    "distribute it, and look": {
        "distribute": ("distribute", "distribute a program over a cluster"),
        "schedule": ("schedule", "write into a program what a script asks for"),
        "show": ("show", "show how a program is split and what its devices send"),
        "simulate": ("simulate", "predict step time, memory and communication"),
        "explore": ("explore", "choose plans on a page that simulates them at once"),
        "check": ("check", "compare two programs on the same inputs"),
    },
    "run it": {
        "run": ("run", "run a program on real processes"),
        "lower": ("lower", "write the PyTorch package that runs a program"),
        "export": ("export", "write weights or a plan for other programs"),
    },
}
"""
The commands by what users want to do. Each has its module in `distir.tools.commands`
and a one-line description.
"""

COMMANDS = {
    name: command for commands in GROUPS.values() for name, command in commands.items()
}
"""All commands of `GROUPS`."""


class Command(Protocol):
    """The interface of a command's module in `distir.tools.commands`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments of the command to `parser`."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Runs the command and returns the exit code."""
        ...


class _Parser(argparse.ArgumentParser):
    """
    A parser that reports an error in one paragraph, with a suggestion of a similar
    argument and the command that shows the help.
    """

    def parse_known_args(self, *args: Any, **named: Any) -> Any:
        """
        Parses arguments. The parser of the innermost command reports unknown arguments,
        because its help lists the existing arguments.
        """
        found, unknown = super().parse_known_args(*args, **named)
        if unknown and self._subparsers is None:
            self.refuse(unknown[0])
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see `{self.prog} --help`\n")

    def refuse(self, unknown: str) -> NoReturn:
        """Exits with an error message about the unknown argument `unknown`."""
        options = [
            option for action in self._actions for option in action.option_strings
        ]
        meant = did_you_mean(unknown.split("=")[0], options).rstrip("? ")
        self.error(f"there is no argument {unknown}{f'; {meant}' if meant else ''}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """
        Raises ArgumentError for a value that is not one of the choices of `action`.
        """
        choices = action.choices
        if choices is not None and value not in choices:
            names = [str(choice) for choice in choices]
            raise argparse.ArgumentError(
                action,
                f"invalid choice: {str(value)!r}; {did_you_mean(str(value), names)}"
                f"choose from {', '.join(names)}",
            )


class _PrintCompletion(argparse.Action):
    """
    Prints the code by which a shell completes the arguments of `distir`, and exits. The
    value is the shell's name.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any
    ) -> None:
        from argcomplete.shell_integration import shellcode

        print(shellcode(["distir"], shell=values))
        parser.exit()


def _overview() -> str:
    """Returns the commands in groups, for the help of `distir`."""
    lines = list[str]()
    for wish, commands in GROUPS.items():
        lines += ["", f"{wish}:"]
        lines += [f"  {name:<11} {summary}" for name, (_, summary) in commands.items()]
    lines += ["", "`distir COMMAND --help` says more about a command."]
    return "\n".join(lines[1:])


def _command(name: str) -> Command:
    module_name, _ = COMMANDS[name]
    return cast(Command, import_module(f"distir.tools.commands.{module_name}"))


def argument_parser(only: str | None = None) -> argparse.ArgumentParser:
    """
    Returns the parser of the command line. The parser has the arguments of the command
    `only`, or of all commands if `only` is None. Adding a command's arguments imports
    its module, which takes time.
    """
    parser = _Parser(
        prog="distir",
        description="Distributes neural networks over clusters, on paper and for real.",
        epilog=_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"distir {__version__}")
    parser.add_argument(
        "--completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "fish"),
        metavar="SHELL",
        help="print code that completes arguments in bash, zsh or fish: "
        'eval "$(distir --completion bash)"',
    )
    commands: Any = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND"
    )
    for name, (_, summary) in COMMANDS.items():
        # Without a help of its own it is not listed again below the groups.
        command = commands.add_parser(name, description=summary)
        if only in (None, name):
            _command(name).add_arguments(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Runs a command and returns its exit code. An error is printed on stderr as one
    paragraph, and the exit code is then 1. Without `arguments`, runs the command of
    this process, which then ends.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        collect_rarely_until_exit()
    with rare_garbage_collection():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # a shell asks, as `--completion` told it to
        from argcomplete import autocomplete

        written = os.environ.get("COMP_LINE", "").split()[1:2]
        autocomplete(argument_parser("".join(written)))
    parsed = argument_parser("".join(arguments[:1])).parse_args(arguments)

    from distir.tools.reports.reporting import run_reporting_errors

    return run_reporting_errors(lambda: _command(parsed.command).run(parsed))


if __name__ == "__main__":
    sys.exit(main())
