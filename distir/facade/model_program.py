"""A program as users of Python hold it: the IR, with the weights that belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.planning.annotations import read_notes
from distir.program import BATCH_ROLES, Program
from distir.program.weights import (
    SUFFIX,
    attributes_kept,
    new_weights_beside,
    save_weights,
    weights_file,
)
from distir.text import ProgramPrinter
from distir.tools.files import (
    program_weights,
    read_program,
    write_program,
)

Arrays = Mapping[str, npt.NDArray[Any]]

_LINES = 60
"""The most lines of a program's text that a notebook shows."""


@dataclass(frozen=True, eq=False)
class ModelProgram:
    """
    A program, sequential or distributed, that `import_model`, `build` or `distribute` made
    or that was read from a file.

    - `module`: the IR;
    - `source`: the file that it was read from, if any, whose folder holds its weights;
      `arrays`: the weights by name of a program that is only in memory.
    """

    module: ModuleOp
    source: Path | None = None
    arrays: Arrays = field(default_factory=dict[str, npt.NDArray[Any]], repr=False)

    @staticmethod
    def of(program: ModelProgram | str | Path) -> ModelProgram:
        """
        Returns the program, or reads it from a file. Raises DistIRError and what
        `read_program` raises.
        """
        if isinstance(program, ModelProgram):
            return program
        if not isinstance(program, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DistIRError(
                f"a program is wanted, or the path of one, but a "
                f"{type(program).__name__} is given"
            )
        return ModelProgram(read_program(Path(program)), Path(program))

    @property
    def name(self) -> str:
        """The name of the program in messages."""
        return "the program" if self.source is None else str(self.source)

    @property
    def weights(self) -> Arrays:
        """Returns the weights by name; none if it has none. Raises DistIRError."""
        if self.source is None:
            return self.arrays
        return program_weights(self.module, self.source)

    @property
    def notes(self) -> list[str]:
        """The remarks that passes left in it for the user."""
        return read_notes(self.module)

    def with_module(self, module: ModuleOp) -> ModelProgram:
        """Returns another program with the same weights."""
        return ModelProgram(module, self.source, self.arrays)

    def weights_path(self, folder: Path) -> Path | None:
        """
        Returns the file of the weights, if there are any: that of the program, or a new one
        in the folder. Raises DistIRError.
        """
        if self.source is not None:
            return weights_file(self.module, self.source)
        if not self.arrays:
            return None
        path = folder / f"weights{SUFFIX}"
        save_weights(path, self.arrays)
        return path

    def save(self, path: str | Path) -> None:
        """
        Writes the program to a file, and its weights beside it, under the same name with
        the suffix `.safetensors`. Raises DistIRError.
        """
        path = Path(path)
        with attributes_kept(self.module):
            try:
                if self.source is not None or not self.arrays:
                    write_program(self.module, path, self.source)
                    return
                with new_weights_beside(self.module, path, self.arrays):
                    write_program(self.module, path)
            except OSError as error:
                raise DistIRError(
                    f"cannot write {error.filename or path}: {error.strerror}"
                ) from error

    def __str__(self) -> str:
        text = StringIO()
        ProgramPrinter(text).print_program(self.module)
        return text.getvalue()

    def __repr__(self) -> str:
        ops = sum(1 for _ in self.module.walk())
        arguments = Program(self.module).arguments
        return f"<{self.name}: {ops} ops, {len(arguments)} arguments>"

    def _repr_html_(self) -> str:
        """
        Shows in a notebook its arguments and results, its notes, and the beginning of its
        text.
        """
        rows = "".join(
            f"<tr><td>{escape(argument.role)}</td><td>{escape(argument.name)}</td>"
            f"<td><code>{escape(str(argument.type))}</code></td></tr>"
            for argument in Program(self.module).arguments
            if argument.role in BATCH_ROLES
        )
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        lines = str(self).splitlines()
        shown = "\n".join(lines[:_LINES])
        if len(lines) > _LINES:
            shown += f"\n... {len(lines) - _LINES} more lines"
        return (
            f"<p>{escape(repr(self))}</p><table>{rows}</table><ul>{notes}</ul>"
            f"<details><summary>program</summary><pre>{escape(shown)}</pre></details>"
        )
