"""A program as a Python object: the IR together with its weights."""

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
"""The largest number of lines of a program's text that a notebook shows."""


@dataclass(frozen=True, eq=False)
class ModelProgram:
    """
    A sequential or distributed program, made by `import_model`, `build` or
    `distribute`, or read from a file.

    - `module`: the IR;
    - `source`: the file from which the program was read; its weights are in the same
      folder. None for a program that is only in memory;
    - `arrays`: the weights, by name, of a program that is only in memory.
    """

    module: ModuleOp
    source: Path | None = None
    arrays: Arrays = field(default_factory=dict[str, npt.NDArray[Any]], repr=False)

    @staticmethod
    def of(program: ModelProgram | str | Path) -> ModelProgram:
        """
        Returns `program` itself, or reads it from a file if it is a path. Raises
        DistIRError, ParseError or VerifyException if the file is not a valid program.
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
        """
        The name of the program in messages: its file, or "the program" if it is only in
        memory.
        """
        return "the program" if self.source is None else str(self.source)

    @property
    def weights(self) -> Arrays:
        """
        The weights by name; empty if the program has none. Raises DistIRError if the
        file of the weights cannot be read.
        """
        if self.source is None:
            return self.arrays
        return program_weights(self.module, self.source)

    @property
    def notes(self) -> list[str]:
        """
        The messages that passes left for the user in the module attribute `dist.notes`.
        """
        return read_notes(self.module)

    def with_module(self, module: ModuleOp) -> ModelProgram:
        """Returns a program with the IR `module` and the same weights."""
        return ModelProgram(module, self.source, self.arrays)

    def weights_path(self, folder: Path) -> Path | None:
        """
        Returns the path of the weights file, or None if the program has no weights. If
        the weights are only in memory, the method first writes them to a new file in
        `folder`. Raises DistIRError if the new file cannot be written.
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
        Writes the program to the file `path`, and its weights to a file with the same
        name and the suffix `.safetensors`. Raises DistIRError if a file cannot be
        written.
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
        Returns HTML that shows the program in a notebook: its inputs and labels, its
        notes, and the beginning of its IR.
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
