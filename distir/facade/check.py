"""`distir.check`: compares the results of two programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Unpack

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.facade.model_program import Arrays, ModelProgram
from distir.system.output_files import write_text
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import CheckOptions
from distir.tools.comparison import OutputDifference
from distir.tools.entry_checks import compared
from distir.tools.files import read_arrays


@dataclass(frozen=True, eq=False)
class Comparison:
    """
    The differences between the outputs of two programs. A comparison is truthy if all
    of its differences are within the tolerance. `module` is the IR of the second
    program.
    """

    module: ModuleOp
    outputs: Sequence[OutputDifference]

    def __bool__(self) -> bool:
        return all(output.within for output in self.outputs)

    def save(self, path: str | Path) -> None:
        """
        Writes the differences to a JSON file. Raises DistIRError if the file cannot be
        written.
        """
        rows = [{**vars(output), "within": output.within} for output in self.outputs]
        try:
            write_text(path, json.dumps(rows, indent=1) + "\n")
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error.strerror}") from error

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(o.name)}</td><td>{o.absolute:.3g}</td>"
            f"<td>{o.relative:.3g}</td><td>{'equal' if o.within else 'DIFFERS'}</td></tr>"
            for o in self.outputs
        )
        head = "<tr><th>output</th><th>difference</th><th>relative</th><th></th></tr>"
        return f"<table>{head}{rows}</table>"


def check(
    reference: ModelProgram | str | Path,
    candidate: ModelProgram | str | Path,
    *,
    inputs: Mapping[str, Any] | str | Path | None = None,
    **options: Unpack[CheckOptions],
) -> Comparison:
    """
    Runs two programs on the same arguments, in this process, and compares their
    results.

    `inputs` holds arrays by name, or is an .npz file. The weights of the first program
    give further arguments. All other arguments are random, drawn from the option
    `seed`. The option `tolerance` is the largest relative difference allowed, as in
    `distir check`. Raises DistIRError if a program cannot run or the programs have
    different results.
    """
    first, second = ModelProgram.of(reference), ModelProgram.of(candidate)
    names = first.name, second.name
    given = arrays_of(inputs)
    asked = command_options("check", "check", names, options)
    modules = first.module, second.module
    found = compared(modules, names, first.weights, given, asked.seed, asked.tolerance)
    return Comparison(second.module, found)


def arrays_of(inputs: Mapping[str, Any] | str | Path | None) -> Arrays:
    """
    Returns NumPy arrays by name. `inputs` holds arrays or tensors by name, or is an
    .npz file. The result is empty if `inputs` is None. Raises DistIRError if the file
    cannot be read.
    """
    import numpy as np

    if inputs is None or isinstance(inputs, str | Path):
        return read_arrays(None if inputs is None else Path(inputs))
    return {name: np.asarray(value) for name, value in inputs.items()}
