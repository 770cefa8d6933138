"""The result of a frontend: a program and the weights that it refers to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.train_ops.checks import FLOATS
from distir.errors import DistIRError
from distir.program import Program, arguments_of, entry_function, entry_points
from distir.program.entries import joined
from distir.program.weights import attributes_kept, new_weights_beside
from distir.system.output_files import replaced_file
from distir.text import ProgramPrinter


class _CastWeights(Mapping[str, npt.NDArray[Any]]):
    """
    Weights by name. An array is cast to the element type of the program's argument when
    it is looked up.
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
    Returns the weights in the floating-point types of the program's arguments. These
    types may have changed since the import.
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
    An imported model.

    - `module`: a sequential program with the entry function `@main`, or with several
      entries.
    - `weights`: the values of arguments with the role `parameter` or `constant`, by
      `dist.name`, except for arguments without a value in the source (`valueless`).
      Weights in external-data files are memory-mapped.
    - `guessed`: the names of parameters that were recognised only by their use.
    - `notes`: remarks for the user.
    - `shows_locations`: whether a file of the program says which lines of the source its
      ops came from (`loc(...)`).
    """

    module: ModuleOp
    weights: Mapping[str, npt.NDArray[Any]]
    guessed: Sequence[str] = ()
    notes: Sequence[str] = ()
    shows_locations: bool = False

    @property
    def valueless(self) -> list[str]:
        """The names of parameters and constants that have no values."""
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
        Writes the program to `path`, and the weights beside it under the same name with
        the suffix `.safetensors`.

        The written program names that file. Parameters without values are not in it;
        without any weights no file is named. `module` itself stays unchanged. Raises
        DistIRError if a file cannot be written.
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
    Returns one program with the entries `models`, by name, and the weights of all. The
    given models are used up. Raises DistIRError if they share an argument that differs.
    """
    weights: dict[str, Mapping[str, npt.NDArray[Any]]] = {
        name: model.weights for model in models.values() for name in model.weights
    }
    notes = dict.fromkeys(note for model in models.values() for note in model.notes)
    module = joined({name: model.module for name, model in models.items()})
    return ImportedModel(module, _WeightsOf(weights), (), list(notes))


class _WeightsOf(Mapping[str, npt.NDArray[Any]]):
    """Weights by name, each looked up in a mapping of its own."""

    def __init__(self, sources: Mapping[str, Mapping[str, npt.NDArray[Any]]]):
        self._sources = sources

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._sources[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
