"""The result of a frontend: a program and its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute

from distir.dialects.dist_attributes import NAME
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.train_ops.checks import FLOATS
from distir.errors import DistIRError
from distir.program import (
    Program,
    argument_attributes,
    arguments_of,
    entry_function,
    entry_points,
    set_argument_attributes,
)
from distir.program.entries import joined
from distir.program.naming import free_name
from distir.program.weights import attributes_kept, new_weights_beside
from distir.system.output_files import replaced_file
from distir.text import ProgramPrinter


class _CastWeights(Mapping[str, npt.NDArray[Any]]):
    """
    A mapping from names to weights. An array is cast to the element type of the
    program's argument with its name when it is looked up.
    """

    def __init__(
        self,
        weights: Mapping[str, npt.NDArray[Any]],
        dtypes: Mapping[str, np.dtype[Any]],
    ):
        self._weights = weights
        self._dtypes = dtypes

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        array = self._weights[name]
        return array.astype(self._dtypes.get(name, array.dtype), copy=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def in_types_of(
    module: ModuleOp, weights: Mapping[str, npt.NDArray[Any]]
) -> Mapping[str, npt.NDArray[Any]]:
    """
    Returns `weights`, each cast to the floating-point type of the program's argument
    with the weight's name. The program's types may have changed since the import.
    """
    dtypes = {
        argument.name: numpy_dtype(type_.element_type)
        for argument in Program(module).arguments
        if isinstance(type_ := argument.type, TensorType)
        and isinstance(type_.element_type, FLOATS)
    }
    return _CastWeights(weights, dtypes)


@dataclass
class ImportedModel:
    """
    A program that a frontend imported, with its weights.

    - `module`: a sequential program with the entry function `@main`, or with several
      entries.
    - `weights`: the values of arguments with the role `parameter` or `constant`, by
      `dist.name`. Arguments without a value in the source are missing (see
      `valueless`). Weights in external-data files are memory-mapped.
    - `guessed`: the names of parameters that were recognised only by their use.
    - `notes`: remarks for the user.
    - `output`: the structure of the outputs of a PyTorch module, as the text that
      `torch.utils._pytree.treespec_dumps` makes, or "" if it is not known.
    - `shows_locations`: whether the printed program states the source line of each op
      (`loc(...)`).
    """

    module: ModuleOp
    weights: Mapping[str, npt.NDArray[Any]]
    guessed: Sequence[str] = ()
    notes: Sequence[str] = ()
    output: str = ""
    shows_locations: bool = False

    @property
    def valueless(self) -> list[str]:
        """The names of the program's parameters and constants that have no values."""
        roots = entry_points(self.module).values() or [entry_function(self.module)]
        names = {
            argument.name: None
            for root in roots
            for argument in arguments_of(root)
            if argument.role in ("parameter", "constant")
            and argument.name not in self.weights
        }
        return list(names)

    def save(self, path: str | Path) -> None:
        """
        Writes the program to `path`, and its weights beside it under the same name with
        the suffix `.safetensors`.

        The written program names the file of weights. Parameters without values are not
        in that file. If no parameter has a value, no file of weights is written.
        `module` stays unchanged. Raises DistIRError if a file cannot be written.
        """
        path = Path(path)
        with attributes_kept(self.module):
            try:
                with (
                    new_weights_beside(self.module, path, self.weights),
                    replaced_file(path) as stream,
                ):
                    ProgramPrinter(stream).print_program(
                        self.module, with_locations=self.shows_locations
                    )
            except OSError as error:
                raise DistIRError(
                    f"cannot write {error.filename or path}: {error.strerror}"
                ) from error


def joined_models(models: Mapping[str, ImportedModel]) -> ImportedModel:
    """
    Returns one program with an entry for each of `models`, named by the model's key,
    and with all weights. The given models must not be used afterwards.

    Entries share parameters of the same name. They also share constants of the same
    name if type and value are equal; otherwise the constant of the later entry is
    renamed. Raises DistIRError if parameters or caches of the same name have different
    types or roles in different entries.
    """
    sources = _named_apart(models)
    notes = dict.fromkeys(note for model in models.values() for note in model.notes)
    module = joined({name: model.module for name, model in models.items()})
    return ImportedModel(module, _WeightsOf(sources), (), list(notes))


_Source = tuple[Mapping[str, npt.NDArray[Any]], str]
"""Weights by name, and the name of one of them."""


def _named_apart(models: Mapping[str, ImportedModel]) -> dict[str, _Source]:
    """
    Renames, in place, each constant that has the name of an earlier entry's constant
    but a different type or value. Returns the source of each weight by the weight's
    name.
    """
    sources: dict[str, _Source] = {}
    constants: dict[str, Attribute] = {}
    taken = {name for model in models.values() for name in model.weights}
    for model in models.values():
        own = {name: name for name in model.weights}
        function = entry_function(model.module)
        attributes = argument_attributes(function)
        for argument in arguments_of(function):
            name = argument.name
            if argument.role != "constant" or name not in own:
                continue
            source, type_ = (model.weights, name), argument.type
            if name in constants and (
                constants[name] != type_ or not _are_equal(sources[name], source)
            ):
                own[name] = free_name(taken, name)
                taken.add(own[name])
                attributes[argument.index][NAME] = NAME.attr(own[name])
            constants.setdefault(own[name], type_)
        set_argument_attributes(function, attributes)
        for name, new in own.items():
            sources.setdefault(new, (model.weights, name))
    return sources


def _are_equal(first: _Source, second: _Source) -> bool:
    """Whether two weights have the same type, and values with the same bits."""
    a, b = (np.asarray(weights[name]) for weights, name in (first, second))
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class _WeightsOf(Mapping[str, npt.NDArray[Any]]):
    """
    A mapping from names to weights that come from several sources. Each weight is
    looked up in the source from which it comes.
    """

    def __init__(self, sources: Mapping[str, _Source]):
        self._sources = sources

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        weights, own = self._sources[name]
        return weights[own]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
