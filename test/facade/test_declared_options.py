"""An option has one declaration, and what else has it refers to that."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest
from support.declared_options import Declaration, declarations
from support.sources import sources

import distir

PUBLIC = dict(
    place.split(":")[::-1]
    for place in distir._NAMES.values()  # pyright: ignore[reportPrivateUsage]
)
"""The modules of the public functions and classes, by name."""

SCRIPTS = {
    "runtime/": "is copied into packages, which run without DistIR",
    "launch/timing_rank.py": "is started by DistIR alone, with all of its arguments",
    "launch/memory_rank.py": "is started by DistIR alone, with all of its arguments",
}
"""Places whose arguments are not those of commands, and why."""

PYTHON = "Python takes an object where the command takes text"
MODULE = "of modules of PyTorch, beside the options of commands"
PARTS = "of parts that are not traced, alike for opaque and local_map"
OTHER = "two options that mean something else"

EXCEPTIONS = {
    "allow": MODULE,
    "also": f"{PYTHON}: programs",
    "axes": f"{OTHER}: sizes of axes with and without a cluster of their own",
    "axis": "each pass of parallelism splits over an axis of its own",
    "check": MODULE,
    "cluster": f"{MODULE}: the default is this machine",
    "devices": f"{OTHER}: of a cluster, and how many of this machine are measured",
    "dtype": f"{PYTHON}: types of PyTorch",
    "entry": f"{OTHER}: of a program, and the sequence of a schedule",
    "equal_features": MODULE,
    "float8": MODULE,
    "flops": PARTS,
    "fused_attention": MODULE,
    "gradient_flops": PARTS,
    "gradient_memory": PARTS,
    "inputs": f"{PYTHON}: arrays; and `differentiate` has names of inputs",
    "keep": PARTS,
    "kernels": MODULE,
    "labels": f"{PYTHON}: tensors",
    "learning_rate": f"{PYTHON}: a function of the step",
    "loss": f"{PYTHON}: a function",
    "memory": f"{OTHER}: of a device, a limit for layouts, and a report",
    "o": "each command writes a file of its own kind",
    "optimizer": f"{PYTHON}: None for inference",
    "plan": f"{PYTHON}: a plan",
    "prompt": f"{OTHER}: what prefill is built for, and what users send",
    "program": f"{OTHER}: whose kernels are measured, and which a plan is for",
    "resume": f"{OTHER}: results of a search, and checkpoints of a training",
    "schedule": f"{PYTHON}: a function that schedules",
    "seed": MODULE,
    "set": f"{PYTHON}: a dictionary",
    "tolerance": f"{OTHER}: of outputs, and of measurements",
    "weight_decay": f"{PYTHON}: a function of the step",
    "weights": f"{OTHER}: names of a part's parameters, and files",
}
"""Options with several declarations, and why."""

MADE = {
    "tools/arguments/declared.py": "makes arguments from declarations",
    "tools/commands/build.py": "makes arguments from the table of models",
    "tools/commands/plan.py": "sizes that the file of a training system leaves open",
}
"""Places where names of arguments are not written out, and why."""


def repeated(found: Iterable[Declaration]) -> dict[str, list[Declaration]]:
    """
    The options that are declared more than once, by name. Fields of dataclasses that hold
    no options are no declarations.
    """
    by_name: dict[str, list[Declaration]] = {}
    for each in found:
        holds_options = each.owner.endswith(("Options", "Plan"))
        if each.kind != "field" or holds_options:
            by_name.setdefault(each.name, []).append(each)
    return {name: each for name, each in by_name.items() if len(each) > 1}


def test_an_option_is_declared_once() -> None:
    found: list[Declaration] = []
    for name, tree in sources().items():
        if name.startswith(tuple(SCRIPTS)):
            continue
        module = f"distir.{name.removesuffix('.py').replace('/', '.')}"
        functions = frozenset(n for n, place in PUBLIC.items() if place == module)
        found += declarations(name, tree, functions)
    assert {each.path for each in found if each.name == "?"} == MADE.keys()
    twice = repeated(each for each in found if each.name != "?")
    new = [str(d) for n, each in twice.items() if n not in EXCEPTIONS for d in each]
    assert not new, f"declare one, and refer to it (same_option, values_of): {new}"
    assert twice.keys() == EXCEPTIONS.keys(), "an exception is of no use any more"
    names = {each.name for each in found if each.kind == "option"}
    assert {"no_sync", "zero", "profile", "flat", "loss", "dtype"} <= names


@pytest.mark.parametrize(
    ("second", "is_found"),
    [
        ('parser.add_argument("--no-sync", action="store_true")', True),
        ('parser.add_argument("-z", "--no-sync")', True),
        ('parser.add_argument("no_sync")', False),
        ('parser.add_argument("--sync")', False),
    ],
)
def test_an_argument_that_repeats_an_option_is_found(
    second: str, is_found: bool
) -> None:
    text = f"""
@dataclass(frozen=True)
class StepOptions:
    no_sync: bool = option(False, "add up whole gradients")
def add_arguments(parser):
    {second}
"""
    assert bool(repeated(declarations("a.py", ast.parse(text)))) == is_found


@pytest.mark.parametrize(
    ("second", "is_found"),
    [
        ("class ZeroPass(DistIRPass):\n    no_sync: bool = False", True),
        ("class OtherOptions:\n    no_sync: bool = False", True),
        ("class GridPlan(Plan):\n    no_sync: bool = False", True),
        ("class Traffic:\n    no_sync: bool = False", False),
        ("class GridPlan(Plan):\n    no_sync: bool", False),
        (
            'class ZeroPass(DistIRPass):\n    no_sync: bool = same_option(S, "no_sync")',
            False,
        ),
        (
            'class SearchOptions:\n    no_sync: tuple[str, ...] = values_of(S, "no_sync", "")',
            False,
        ),
        ("class Ours(StepOptions):\n    more: int = 0", False),
    ],
)
def test_a_field_that_repeats_an_option_is_found(second: str, is_found: bool) -> None:
    text = f"""
@dataclass
class StepOptions:
    no_sync: bool = option(False, "add up whole gradients")
@dataclass
{second}
"""
    assert bool(repeated(declarations("a.py", ast.parse(text)))) == is_found


def test_a_parameter_that_repeats_an_option_is_found() -> None:
    text = """
@dataclass
class StepOptions:
    no_sync: bool = option(False, "add up whole gradients")
def parallelize(module, *, no_sync: bool = False): ...
"""
    (found,) = repeated(
        declarations("a.py", ast.parse(text), frozenset({"parallelize"}))
    ).values()
    assert [str(each) for each in found] == [
        "option no_sync in a.py:StepOptions",
        "parameter no_sync in a.py:parallelize",
    ]
    assert not repeated(declarations("a.py", ast.parse(text)))


def test_an_argument_that_is_not_written_out_is_found() -> None:
    text = "def add(parser, name):\n    parser.add_argument(f'--{name}')\n"
    (found,) = declarations("a.py", ast.parse(text))
    assert found.name == "?"
