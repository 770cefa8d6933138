"""The pages of the reference, as Markdown: commands, Python, passes and dialects."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from importlib import import_module
from typing import Any, get_type_hints
from unittest import mock

from xdsl.ir import Attribute, Operation
from xdsl.irdl import (
    OptAttributeDef,
    OptOperandDef,
    OptPropertyDef,
    OptRegionDef,
    OptResultDef,
    VarOperandDef,
    VarRegionDef,
    VarResultDef,
)
from xdsl.passes import ModulePass

import distir
from distir.dialects import dist, dist_attributes, get_all_dialects
from distir.dialects.dist_attributes import DistAttribute, declared
from distir.frontends.options import ModuleOptions
from distir.gradients.options import StepOptions
from distir.hardware.options import ProfileOptions, TargetOptions
from distir.interpreters.simulator.options import SimulationOptions
from distir.launch.options import ProcessOptions
from distir.options import options_of
from distir.passes import get_all_passes
from distir.planning.distribution.options import DistributionOptions
from distir.planning.plans.options import ListOptions, RequestOptions, SearchOptions
from distir.tools.arguments.declared import flag_of
from distir.tools.cli import COMMANDS, argument_parser
from distir.transforms.precision.options import PrecisionOptions

WIDTH = "100"
"""The columns that the help of commands is broken at."""

RESULTS = (
    "distir.facade.model_program:ModelProgram",
    "distir.facade.programs:ScheduledProgram",
    "distir.facade.check:Comparison",
    "distir.facade.cluster:DescribedCluster",
    "distir.facade.run:LoweredProgram",
    "distir.facade.run:RunResult",
    "distir.facade.show:ShownProgram",
    "distir.facade.simulate:SimulatedProgram",
    "distir.facade.simulate:SimulatedDifference",
    "distir.planning.plans.plan_search:SearchResults",
)
"""The classes of what functions of `distir` return that have no name in it."""

DECLARED = {
    "The cluster": (TargetOptions, ProfileOptions),
    "Distributing": (DistributionOptions,),
    "Searching": (SearchOptions, RequestOptions, ListOptions),
    "Training steps": (StepOptions,),
    "Types and modules": (PrecisionOptions, ModuleOptions),
    "Simulating": (SimulationOptions,),
    "Running": (ProcessOptions,),
}
"""The classes that declare options, by what these are about."""

OTHERS = (("calibrate", "--devices"),)
"""Options of commands that only have the names of declared ones."""

_OPTIONAL = (
    *(OptOperandDef, OptResultDef, OptRegionDef),
    *(OptPropertyDef, OptAttributeDef),
)
_SEVERAL = (VarOperandDef, VarResultDef, VarRegionDef)


def pages() -> dict[str, str]:
    """Returns the text of every page of the reference by its path in the site."""
    made = {
        "reference/commands.md": commands_page(),
        "reference/options.md": options_page(),
        "reference/passes.md": passes_page(),
        "reference/python.md": python_page(),
        "reference/scheduling.md": module_page(
            "Schedules",
            "What scripts of [schedules](../schedules.md) are written with.",
            "distir.scheduling",
        ),
        "reference/pipelining.md": module_page(
            "Pipelines",
            "Schedules of pipelines as plain data, without a program.",
            "distir.pipelining",
        ),
        "reference/extension.md": module_page(
            "Ops of other packages",
            "The public names for packages with [ops of their own](../extending.md).",
            *("distir.extension", "distir.rules", "distir.testing"),
        ),
    }
    for name in get_all_dialects():
        made[f"reference/dialects/{name}.md"] = dialect_page(name)
    return made


def commands_page() -> str:
    """Returns what each command of `distir` does, with all of its options."""
    sections: list[str] = []
    with mock.patch.dict(os.environ, COLUMNS=WIDTH):
        parsers = _commands_of(argument_parser())
        for name, (_, what) in COMMANDS.items():
            sections.append(_help_section(f"distir {name}", what, parsers[name]))
            sections += [
                _help_section(f"distir {name} {model}", "", own)
                for model, own in _commands_of(parsers[name]).items()
            ]
    start = "# Commands\n\nEvery command of `distir`, as its `--help` says it.\n\n"
    return start + "\n".join(sections)


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of the commands in a command line, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _help_section(title: str, about: str, parser: argparse.ArgumentParser) -> str:
    text = _sentence(about) if about else ""
    return f"## {title}\n\n{text}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


def options_page() -> str:
    """
    Returns a table of the options that are declared once for commands, functions and passes.
    """
    parsers = _commands_of(argument_parser())
    flags = {name: set(_flags(parser)) for name, parser in parsers.items()}
    lines = [
        "# Options",
        "",
        "The options that commands share with functions of `import distir`, where `-` is `_`, "
        "and with passes. Each is declared once; a command may have another default.",
        "",
    ]
    shown = set[str]()
    for title, owners in DECLARED.items():
        lines += [f"## {title}", "", "| option | default | commands | meaning |"]
        lines.append("|---|---|---|---|")
        for option in (each for owner in owners for each in options_of(owner)):
            key = f"{option.declared.several} {option.name}"
            if key not in shown:
                shown.add(key)
                flag = flag_of(option)
                several = option.declared.several
                where = ", ".join(
                    name
                    for name, own in flags.items()
                    if (flag, several) in own and (name, flag) not in OTHERS
                )
                lines.append(
                    f"| `{flag}` | {_code(repr(option.default))} | {where} "
                    f"| {_cell(option.declared.help)} |"
                )
        lines.append("")
    return "\n".join(lines)


def _flags(parser: argparse.ArgumentParser) -> Iterator[tuple[str, bool]]:
    """
    Yields the options of a command and of the commands below it, and whether one argument
    holds several values.
    """
    for action in parser._actions:
        yield from ((flag, action.default == ()) for flag in action.option_strings)
    for own in _commands_of(parser).values():
        yield from _flags(own)


def _cell(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("|", "\\|").replace("*", "\\*")


def passes_page() -> str:
    """Returns what each pass of `distir-opt` does, with its options and their defaults."""
    start = (
        "# Passes\n\nEvery pass of `distir-opt`, with its options: "
        "`distir-opt model.mlir -p 'distribute{d=2 t=2}'`.\n\n"
    )
    return start + "\n".join(
        _pass_section(name, load()) for name, load in sorted(get_all_passes().items())
    )


def _pass_section(name: str, pass_: type[ModulePass]) -> str:
    lines = [f"## {name}", "", inspect.getdoc(pass_) or "", ""]
    options = fields(pass_)  # pyright: ignore[reportArgumentType]
    if options:
        hints = get_type_hints(pass_)
        helps = {each.name: each.declared.help for each in options_of(pass_)}
        lines += ["| option | type | default | in commands |", "|---|---|---|---|"]
        lines += [
            f"| `{option.name.replace('_', '-')}` | {_code(_type_text(hints[option.name]))} "
            f"| {_default(option)} | {_cell(helps.get(option.name, ''))} |"
            for option in options
        ]
    else:
        lines.append("It has no options.")
    return "\n".join([*lines, ""])


def _type_text(hint: Any) -> str:
    return (
        hint.__name__ if isinstance(hint, type) and not _parameters(hint) else str(hint)
    )


def _parameters(hint: Any) -> bool:
    return bool(getattr(hint, "__args__", ()))


def _default(option: Field[Any]) -> str:
    if option.default is not MISSING:
        return _code(repr(option.default))
    if option.default_factory is not MISSING:
        return _code(repr(option.default_factory()))
    return "needed"


def _code(text: str) -> str:
    """Text as code in a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def python_page() -> str:
    """Returns the documentation of the functions and classes of `import distir`."""
    places = {name: place.replace(":", ".") for name, place in distir._NAMES.items()}
    sections = [_documented(place, f"distir.{name}") for name, place in places.items()]
    sections += [
        _documented(place.replace(":", "."), place.rpartition(":")[2])
        for place in RESULTS
    ]
    start = (
        "# Python\n\nWhat `import distir` provides ([with examples](../python.md)).\n\n"
    )
    return start + "\n".join(sections)


def module_page(title: str, about: str, *modules: str) -> str:
    """
    Returns the documentation of the public names of modules: functions, classes, and modules
    with all that is public in them.
    """
    sections = [
        _documented(f"{module}.{name}", name)
        for module in modules
        for name in import_module(module).__all__
    ]
    return f"# {title}\n\n{about}\n\n" + "\n".join(sections)


def _documented(place: str, heading: str) -> str:
    """Returns what mkdocstrings replaces with the documentation of a name."""
    return f"::: {place}\n    options:\n      heading: {heading}\n"


def dialect_page(name: str) -> str:
    """Returns what a dialect is for, and its ops and attributes."""
    dialect = get_all_dialects()[name]()
    about = inspect.getdoc(import_module(f"distir.dialects.{name}")) or ""
    lines = [f"# The {name} dialect", "", about, ""]
    if name == "onnx":
        return "\n".join([*lines, *_operators(list(dialect.operations))])
    for attribute in dialect.attributes:
        lines += _attribute_section(attribute)
    if name == "dist":
        lines += _attribute_table(declared(dist_attributes, dist).values())
    for op in dialect.operations:
        lines += _op_section(op)
    return "\n".join(lines)


def _operators(ops: list[type[Operation]]) -> Iterator[str]:
    """Yields the list of ONNX's operators, each with a link to what ONNX says of it."""
    yield f"## The {len(ops)} operators\n"
    for op in sorted(ops, key=lambda op: op.name):
        own = op.name.removeprefix("onnx.")
        yield f"- [`{op.name}`](https://onnx.ai/onnx/operators/onnx__{own}.html)"


def _attribute_section(attribute: type[Attribute]) -> list[str]:
    return [f"## #{attribute.name}", "", inspect.getdoc(attribute) or "", ""]


def _attribute_table(attributes: Iterable[DistAttribute]) -> list[str]:
    """Returns the attributes that parts of a program carry, with forms and meanings."""
    rows = [
        f"| `{each}` | {each.FORM.replace('NAME', each)} | {_sentence(each.meaning)} |"
        for each in sorted(attributes)
    ]
    return [
        "## Attributes",
        "",
        "| name | value | meaning |",
        "|---|---|---|",
        *rows,
        "",
    ]


def _op_section(op: type[Operation]) -> list[str]:
    """Returns the documentation of an op: its docstring, and what it is made of."""
    definition = op.get_irdl_definition()  # pyright: ignore[reportAttributeAccessIssue]
    parts = {
        "operand": definition.operands,
        "result": definition.results,
        "property": list(definition.properties.items()),
        "attribute": list(definition.attributes.items()),
        "region": definition.regions,
    }
    rows = [
        f"| `{name}` | {kind} | {_how_many(declared)} |"
        for kind, declarations in parts.items()
        for name, declared in declarations
    ]
    lines = [f"## {op.name}", "", inspect.getdoc(op) or "", ""]
    if rows:
        lines += ["| name | what it is | how many |", "|---|---|---|", *rows, ""]
    return lines


def _how_many(declared: object) -> str:
    if isinstance(declared, _OPTIONAL):
        return "one or none"
    return "any number" if isinstance(declared, _SEVERAL) else "one"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
