"""
Makes `distir/tools/arguments/typed_options.py` from the parsers of the commands:

    PYTHONPATH=test python -m support.typed_options > distir/tools/arguments/typed_options.py
"""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from distir.tools.cli import COMMANDS

HEAD = '''"""
The options of the functions of `import distir`, with their types. Each function has the
options of a command. `python -m support.typed_options` makes this file from the parsers of
the commands; `test/facade/test_typed_options.py` compares this file with the parsers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Required, TypedDict
'''

TEXTS = {"duration", "number_of_bytes", "rate", "requests_per_second", "share"}
"""Types of arguments that may also be written with a unit."""


class Table(NamedTuple):
    """
    A TypedDict: the command whose options it has, those that it has not, as a function has
    them by itself or they write a file, and the table that it adds to.
    """

    command: str
    without: str = ""
    base: str = ""


TABLES = {
    "ParallelizeOptions": Table(
        "distribute", "plan cluster devices schedule offload_states pad stage_meshes"
    ),
    "DistributeOptions": Table("distribute", "plan", "ParallelizeOptions"),
    "ImportOptions": Table("import"),
    "BuildOptions": Table("build"),
    "SchedulingOptions": Table("schedule", "print top set also"),
    "SearchingOptions": Table("search", "explain top json plot save_plan"),
    "ServePlanOptions": Table("serve-plan", "json html"),
    "ShowOptions": Table("show", "json", "DistributeOptions"),
    "SimulateOptions": Table(
        "simulate", "json trace html memory diff", "DistributeOptions"
    ),
    "LowerOptions": Table("lower"),
    "CheckOptions": Table("check", "inputs"),
    "RunOptions": Table("run", "inputs"),
    "ClusterOptions": Table("cluster", "kind"),
    "ExportOptions": Table("export"),
    "CalibrateOptions": Table("calibrate"),
}


def _actions(parser: ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the options of a parser and of the parsers below it."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            for below in action.choices.values():
                yield from _actions(below)
        elif action.option_strings and "-o" not in action.option_strings:
            yield action


def _several(one: str) -> str:
    return f"{one} | Sequence[{one}]"


def _type(action: argparse.Action) -> str:
    """Returns the type of an option's value, as Python writes it."""
    if action.nargs == 0:
        return "bool"
    call = type(action.type).__call__  # of an object that parses
    notes = [getattr(f, "__annotations__", {}) for f in (action.type, call)]
    made = next((note["return"] for note in notes if "return" in note), "")
    name = getattr(action.type, "__name__", "")
    if action.choices is not None:
        one = f"Literal[{', '.join(map(repr, action.choices))}]"
    elif made in ("int", "float"):
        one = f"str | {made}" if name in TEXTS else made
    elif action.type in (int, float):
        one = name
    elif name in ("Path", "input_file") or "FILE" in str(action.metavar):
        one = "str | Path"
    else:
        one = "str"
    repeats = ("_AppendAction", "_ExtendAction")
    if values := re.fullmatch(r"tuple\[(\w+), \.\.\.\]", made):
        return _several(values[1])
    if made.startswith("tuple[int"):
        return f"Sequence[{made}]"
    if action.nargs == "+":
        return f"{one} | Sequence[{one} | int]"
    if pair := re.fullmatch(r"tuple\[str, (\w+)\]", made):
        return f"Mapping[str, {pair[1]}] | {_several('str')}"
    if type(action).__name__ in repeats:
        one = _several(one)
    return f"bool | {one}" if action.nargs == "?" else one


def options(command: str) -> dict[str, str]:
    """Returns the names of the options of a command in Python, and their types."""
    parser = ArgumentParser(add_help=False)
    import_module(f"distir.tools.commands.{COMMANDS[command][0]}").add_arguments(parser)
    found: dict[str, list[str]] = {}
    is_one = parser._subparsers is None  # pyright: ignore[reportPrivateUsage]
    for action in _actions(parser):
        for written in action.option_strings:
            if action.help == argparse.SUPPRESS or written == "--help":
                continue
            name = written.lstrip("-").replace("-", "_")
            known = found.setdefault(name, [])
            own = _type(action)
            if action.required and is_one:
                own = f"Required[{own}]"
            if own not in known:
                known.append(own)
            if (
                name.startswith("no_") and action.nargs == 0
            ):  # `check=False` is `no_check=True`
                found.setdefault(name.removeprefix("no_"), ["bool"])
    found.pop("h", None)
    return {name: " | ".join(types) for name, types in found.items()}


def tables() -> dict[str, dict[str, str]]:
    """Returns the fields of each table by name, without those of its base."""
    found: dict[str, dict[str, str]] = {}
    for name, table in TABLES.items():
        without = {*table.without.split(), *found.get(table.base, {})}
        own = options(table.command)
        found[name] = {n: t for n, t in own.items() if n not in without}
    return found


def _written(names: Iterable[str], fields: dict[str, dict[str, str]]) -> str:
    parts: list[str] = [HEAD]
    for name in names:
        table = TABLES[name]
        base = table.base or "TypedDict"
        parts.append(f"class {name}({base}, total=False):")
        parts.append(f'    """The options of `distir {table.command}`."""\n')
        parts += [f"    {n}: {t}" for n, t in fields[name].items()]
        parts.append("\n")
    return "\n".join(parts)


def main(arguments: Sequence[Any] = ()) -> None:
    print(_written(TABLES, tables()))


if __name__ == "__main__":
    main()
