"""Checks and converts options of Python functions that are those of a command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _StoreAction  # pyright: ignore[reportPrivateUsage]
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

from distir.errors import DistIRError, did_you_mean
from distir.tools.cli import COMMANDS, Command


class _OptionParser(ArgumentParser):
    """Reports a wrong option as an error that users can read."""

    def parse_known_args(self, *args: Any, **named: Any) -> Any:
        """Parses arguments; refuses unknown ones by the names that they have in Python."""
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
        """Whether there is an option that is written in this way."""
        return option in self._option_string_actions

    def texts(self, name: str, value: Any) -> list[str]:
        """
        Returns an option as it is written for a command. Several values are an option each,
        one option with commas between them, or one with several arguments, as it takes them.
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
    """Returns values with commas between them; another value as it is."""
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
    Returns the arguments of a command, from the options that a Python function is given.
    Their names are those of the command, with _ for -. True stands for an option without a
    value; None, or False unless the command has an option that turns it off, for one that
    is left out; several values are a list, pairs a dictionary. `known` are the options that
    the function takes, if it does not take all of the command. Raises DistIRError.
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
            # There may be no option that turns it on, which it is then by default.
            value = value and parser.knows(_option(name))
            texts += [] if options[name] else [off]
        texts += parser.texts(name, value)
    return parser.parse_args(texts)


def _unknown(function: str, name: str, known: Collection[str]) -> str:
    """Returns the error for an option that a function does not have."""
    meant = did_you_mean(name, known).rstrip()
    return (
        f"distir.{function}: there is no option {name}{f'; {meant}' if meant else ''}"
    )


def _option(name: str) -> str:
    """Returns a name as commands write it."""
    return f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"
