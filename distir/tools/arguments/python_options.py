"""Checks and converts the options of Python functions that correspond to commands."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _StoreAction  # pyright: ignore[reportPrivateUsage]
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

from distir.errors import DistIRError, did_you_mean
from distir.tools.cli import COMMANDS, Command


class _OptionParser(ArgumentParser):
    """A parser that raises DistIRError for a wrong option."""

    def parse_known_args(self, *args: Any, **named: Any) -> Any:
        """
        Parses arguments. Raises DistIRError for an unknown option, with its Python
        spelling.
        """
        found, unknown = super().parse_known_args(*args, **named)
        if unknown and self._subparsers is None:
            name = unknown[0].lstrip("-").partition("=")[0].replace("-", "_")
            known = [
                option.lstrip("-").replace("-", "_")
                for option in self._option_string_actions
            ]
            raise DistIRError(_unknown(self.prog, name, known))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise DistIRError(f"distir.{self.prog}: {message}")

    def knows(self, option: str) -> bool:
        """Whether `option` is the spelling of an existing option."""
        return option in self._option_string_actions

    def texts(self, name: str, value: Any) -> list[str]:
        """
        Returns the command-line arguments for the option `name` with the Python value
        `value`. A list of values becomes one option with several arguments, one option
        with commas, or one option for each value, depending on the option's
        declaration.
        """
        option = _option(name)
        if value is None or value is False:
            return []
        if value is True:
            return [option]
        if isinstance(value, Mapping):
            pairs = cast(Mapping[str, Any], value)
            return [f"{option}={key}={one}" for key, one in pairs.items()]
        if isinstance(value, list | tuple):
            several = cast(Sequence[Any], value)
            action = self._option_string_actions.get(option)
            if action is not None and action.nargs == "+":
                return [option, *map(str, several)]
            if isinstance(action, _StoreAction):
                return self.texts(name, _joined(several)) if several else []
            return [text for one in several for text in self.texts(name, _joined(one))]
        return [f"{option}={value}"] if len(name) > 1 else [f"{option}{value}"]


def _joined(value: Any) -> Any:
    """
    Returns the items of a list or tuple as text with commas. Returns other values
    unchanged.
    """
    if not isinstance(value, list | tuple):
        return value
    return ",".join(map(str, cast(Sequence[Any], value)))


def command_options(
    command: str,
    function: str,
    positional: Sequence[str | Path],
    options: Mapping[str, Any],
    known: Collection[str] | None = None,
) -> Namespace:
    """
    Returns a command's parsed arguments, from the options given to a Python function.

    Options have the names of the command's options, with `_` in place of `-`. True
    stands for an option without a value. None leaves an option out. False also leaves
    the option out, unless the command has an option that turns it off. A list gives
    several values, and a dictionary gives pairs. `known` holds the names of the
    function's options; None stands for all options of the command. Raises DistIRError
    for unknown options and wrong values.
    """
    for name in options:
        if known is not None and name not in known:
            raise DistIRError(_unknown(function, name, known))
    parser = _OptionParser(prog=function, add_help=False, allow_abbrev=False)
    module = cast(
        Command, import_module(f"distir.tools.commands.{COMMANDS[command][0]}")
    )
    module.add_arguments(parser)
    texts = [str(text) for text in positional]
    for name, value in options.items():
        off = _option(f"no-{name}")
        if isinstance(value, bool) and parser.knows(off):
            # If no option turns it on, it is on by default.
            value = value and parser.knows(_option(name))
            texts += [] if options[name] else [off]
        texts += parser.texts(name, value)
    return parser.parse_args(texts)


def _unknown(function: str, name: str, known: Collection[str]) -> str:
    """
    Returns the error message for an option `name` that the function does not have.
    """
    meant = did_you_mean(name, known).rstrip()
    return (
        f"distir.{function}: there is no option {name}{f'; {meant}' if meant else ''}"
    )


def _option(name: str) -> str:
    """Returns the command-line spelling of the option `name`."""
    return f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"
