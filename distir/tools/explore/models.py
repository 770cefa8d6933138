"""The programs that the page can show: given files, and models of `distir build`."""

from __future__ import annotations

import gc
import shlex
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distir.errors import DistIRError, did_you_mean
from distir.frontends.models import SIZES
from distir.tools.arguments.python_options import command_options
from distir.tools.commands.build import MODELS

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

ON, OFF = "on", "off"
"""The values of an option that is either on or off."""

_SWITCHES = ("training",)
_DEFAULTS: Mapping[str, str] = {
    "layers": "12",
    "d_model": "768",
    "heads": "12",
    "vocab": "50257",
    "experts": "8",
    "channels": "64",
    "classes": "1000",
    "batch": "32",
    "seq": "1024",
    "dtype": "bf16",
    "training": ON,
}
"""The options that a model has if neither the user nor its size gives them."""

_LEFT_OUT = ("decode", "dropout", "dropout_seed", "no_fused_attention")
"""Options of `distir build` that the page does not have."""

_KEPT = 4
"""The number of programs that stay in memory."""


@dataclass(frozen=True)
class ModelChoice:
    """
    A program: a file that was given on the command line, or a model of `distir build`.

    - `name`: the given path of the file, or the name of the model;
    - `options`: the options of `distir build` that differ from the page's defaults, in
      the order of the form; empty for a file.
    """

    name: str
    options: tuple[tuple[str, str], ...] = ()
    is_file: bool = False

    @cached_property
    def all_options(self) -> dict[str, str]:
        """
        The options of `distir build` for the model, by name. Values of its named size
        are left out.
        """
        given = dict(self.options)
        size = given.get("size", default_size(self.name))
        by_size = SIZES.get(self.name, {}).get(size, {})
        found = {"size": size} if size else {}
        for name in option_names(self.name):
            value = given.get(name, "" if name in by_size else _DEFAULTS.get(name, ""))
            if value and name != "size":
                found[name] = value
        return found

    @property
    def file(self) -> str:
        """
        The name of the program's file, or of the file that the command `distir build`
        writes.
        """
        if self.is_file:
            return self.name
        size = self.all_options.get("size", "")
        return f"{self.name}{f'-{size}' if size else ''}.mlir"

    @property
    def command(self) -> str:
        """The command that builds the program; empty for a file."""
        if self.is_file:
            return ""
        words = ["distir", "build", self.name]
        for name, value in self.all_options.items():
            flag = f"--{name.replace('_', '-')}"
            if _is_switch(self.name, name):
                words += [flag] if value == ON else []
            else:
                words += [flag, value]
        return shlex.join([*words, "-o", self.file])

    def built(self) -> ModuleOp:
        """
        Builds the model. Raises DistIRError for options that the model does not allow.
        """
        from distir.tools.commands.build import built

        options = {
            name: value == ON if _is_switch(self.name, name) else value
            for name, value in self.all_options.items()
        }
        return built(page_options("build", [self.name, "-o", "-"], options))


def page_options(
    command: str, positional: Sequence[str], options: Mapping[str, Any]
) -> Namespace:
    """
    Returns the parsed arguments of a command, from its options by their Python names.
    Raises DistIRError if an option is wrong; the message begins with this option.
    """
    try:
        return command_options(command, "explore", positional, options)
    except DistIRError as error:
        message = str(error)
        if message.startswith("distir.explore"):
            message = message.partition(": ")[2]
        raise DistIRError(message) from error


def option_names(model: str) -> Iterator[str]:
    """
    Yields the names of the page's options for a model of `distir build`, in order.
    """
    known = MODELS[model]
    if SIZES.get(model):
        yield "size"
    yield from known.needed
    yield from (name for name in known.options if name not in _LEFT_OUT)
    yield from ("dtype", *_SWITCHES)


def default_size(model: str) -> str:
    """Returns the first published size of a model; "" if there is none."""
    return next(iter(SIZES.get(model, {})), "")


def default_value(model: str, name: str, size: str) -> str:
    """
    Returns the value of an option of `distir build` that a URL leaves out, for a model
    of the named size `size`.
    """
    if name == "size":
        return default_size(model)
    by_size = SIZES.get(model, {}).get(size, {})
    return str(by_size.get(name, _DEFAULTS.get(name, "")))


def _is_switch(model: str, name: str) -> bool:
    option = MODELS[model].options.get(name)
    return name in _SWITCHES or (option is not None and option.type is None)


def read_choice(
    name: str, given: Mapping[str, str], files: Sequence[str]
) -> ModelChoice:
    """
    Returns the program called `name`: one of `files`, or a model of `distir build` with
    the options `given`, by name. Raises DistIRError for unknown names and wrong
    options.
    """
    if name in files:
        if given:
            raise DistIRError(
                f"{name} is a file, so that {' and '.join(given)} cannot be changed here; "
                f"build a program with another size"
            )
        return ModelChoice(name, is_file=True)
    if name not in MODELS:
        known = [*files, *MODELS]
        raise DistIRError(
            f"there is no model {name!r} here; {did_you_mean(name, known)}choose from "
            f"{', '.join(known)}"
        )
    allowed = list(option_names(name))
    for option, value in given.items():
        if option not in allowed:
            raise DistIRError(f"the model {name} has no option {option}")
        if _is_switch(name, option) and value not in (ON, OFF):
            raise DistIRError(f"{option} is {ON} or {OFF}, not {value!r}")
    size = given.get("size", default_size(name))
    if size and size not in SIZES.get(name, {}):
        sizes = ", ".join(SIZES.get(name, {}))
        raise DistIRError(f"{name} has no size {size!r}; choose from {sizes}")
    options = tuple(
        (option, given[option])
        for option in allowed
        if option in given and given[option] != default_value(name, option, size)
    )
    return ModelChoice(name, options)


class KnownPrograms:
    """
    The programs that were read or built most recently. `files` are the paths of given
    programs, which are read once, at the start of the page.
    """

    def __init__(self, files: Mapping[str, ModuleOp]):
        self._files = files
        self._built: OrderedDict[ModelChoice, ModuleOp] = OrderedDict()

    @property
    def files(self) -> list[str]:
        """The names of the given programs."""
        return list(self._files)

    def __call__(self, choice: ModelChoice) -> ModuleOp:
        """
        Returns a program, which the caller must not change. Raises DistIRError for
        options that the model does not allow.
        """
        if choice.is_file:
            return self._files[choice.name]
        if choice not in self._built:
            self._built[choice] = choice.built()
            if len(self._built) > _KEPT:
                self._built.popitem(last=False)
                gc.unfreeze()
            # A collection after an answer then searches what the answer made alone.
            gc.collect()
            gc.freeze()
        self._built.move_to_end(choice)
        return self._built[choice]


def read_files(paths: Sequence[Path]) -> dict[str, ModuleOp]:
    """
    Reads programs, and returns them by their given paths. Raises ParseError,
    VerifyException or DistIRError if a file is not a valid program.
    """
    from distir.tools.files import read_program

    return {str(path): read_program(path) for path in paths}
