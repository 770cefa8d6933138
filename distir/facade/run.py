"""
`distir.lower` and `distir.run`: write a distributed program as a package, and run it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.facade.check import arrays_of
from distir.facade.model_program import ModelProgram
from distir.system.output_files import replaced_files
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import LowerOptions, RunOptions
from distir.tools.commands.lower import PeakMemory, lowered, peak_memory
from distir.tools.files import write_arrays


@dataclass(frozen=True, eq=False)
class LoweredProgram:
    """
    A package of PyTorch code in `folder`. `module` is the IR of the package's program.
    With the option `check_memory`, `memory` holds the simulated and the counted peak
    memory of each group of processes that run the same code.
    """

    module: ModuleOp
    folder: Path
    memory: Sequence[PeakMemory] = ()

    def save(self, path: str | Path) -> None:
        """
        Copies the package to the folder `path`, which is made if it does not exist.
        Raises DistIRError if the folder cannot be written.
        """
        try:
            with replaced_files(path) as made:
                shutil.copytree(self.folder, made, dirs_exist_ok=True)
        except shutil.Error as error:  # one for each file
            raise DistIRError(f"cannot write {path}: {error.args[0][0][2]}") from error
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error.strerror}") from error

    @property
    def source(self) -> str:
        """The Python code of all ranks' programs."""
        return (self.folder / "program.py").read_text("utf-8")

    def _repr_html_(self) -> str:
        return (
            f"<p>{escape(str(self.folder))}: start it with torchrun "
            f"{escape(str(self.folder / 'main.py'))}</p><details><summary>program.py"
            f"</summary><pre>{escape(self.source)}</pre></details>"
        )


def lower(
    program: ModelProgram | str | Path,
    output: str | Path,
    **options: Unpack[LowerOptions],
) -> LoweredProgram:
    """
    Writes a PyTorch package that runs a distributed program, into the folder `output`,
    which is made if it does not exist.

    The options are `evaluation`, `compile`, `check_memory` and `kernels`, as in the
    command `distir lower`. `kernels` are files with the user's kernels; the package
    contains copies of the kernels that its program calls. Weights that are only in
    memory are written to the package's folder. If the weights are in a file, the
    package refers to that file. Raises DistIRError if the program cannot be lowered or
    a file cannot be written.
    """
    source, folder = ModelProgram.of(program), Path(output)
    given = command_options("lower", "lower", [source.name, "-o", "."], options)
    given.output = folder
    if source.source is None and source.arrays:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DistIRError(f"cannot write {folder}: {error.strerror}") from error
    weights = source.weights_path(folder)
    if weights is not None and weights.exists() and source.source is not None:
        source.weights  # noqa: B018  # refuses those of another program
    package = lowered(source.module, given, weights)
    memory = peak_memory(source.module, package) if given.check_memory else ()
    return LoweredProgram(source.module, package, memory)


@dataclass(frozen=True, eq=False)
class RunResult:
    """
    The results of a run. `outputs` holds arrays by name, and `module` is the program's
    IR.
    """

    module: ModuleOp
    outputs: Mapping[str, npt.NDArray[Any]]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.outputs[name]

    def save(self, path: str | Path) -> None:
        """
        Writes the outputs to an .npz file. Raises DistIRError if the file cannot be
        written.
        """
        try:
            write_arrays(Path(path), self.outputs)
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error.strerror}") from error

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{array.dtype}{list(array.shape)}</td></tr>"
            for name, array in self.outputs.items()
        )
        return f"<table>{rows}</table>"


Setting = float | Callable[[int], float]
"""
A hyper-parameter of the optimizer: a number, or a function that takes the number of the
step.
"""


def _every_step(name: str, setting: Setting, steps: int | None) -> list[float]:
    """
    Returns the value of the hyper-parameter `name` in each of `steps` steps, from step
    1. Raises DistIRError if `steps` is None, or if a value is negative or not finite.
    """
    if steps is None:
        raise DistIRError(f"distir.run: {name} is of use with steps only; add steps=N")
    each = range(1, steps + 1)
    values = [float(setting(s) if callable(setting) else setting) for s in each]
    for step, value in zip(each, values, strict=True):
        if not isfinite(value) or value < 0:
            raise DistIRError(
                f"distir.run: {name} is {value} in step {step}; give a number that is not "
                f"negative"
            )
    return values


def _silent(line: str) -> None:
    """Discards a line of progress."""


def run(
    program: ModelProgram | str | Path,
    *,
    inputs: Mapping[str, Any] | str | Path | None = None,
    learning_rate: Setting | None = None,
    weight_decay: Setting | None = None,
    **options: Unpack[RunOptions],
) -> RunResult:
    """
    Runs a distributed program on processes of this machine, and returns its results.

    The options are those of the command `distir run`, such as `backend`, `seed`,
    `timeout` and `steps`. `inputs` holds whole arrays or tensors by name, or is an .npz
    file. `learning_rate` and `weight_decay` replace the program's own values in a
    training run. Each is a number, or a function of the number of the step, from 1 on.
    Raises DistIRError if the program cannot run.
    """
    from distir.tools.commands.run import check_options, executed

    if "outputs" in options:
        raise DistIRError("distir.run: outputs are returned; the result has save")
    source = ModelProgram.of(program)
    given = command_options("run", "run", [source.name], options)
    check_options(given)
    wanted = {"learning_rate": learning_rate, "weight_decay": weight_decay}
    settings = {
        name: _every_step(name, setting, given.steps)
        for name, setting in wanted.items()
        if setting is not None
    }
    arrays = {name: np.asarray(array) for name, array in arrays_of(inputs).items()}
    with TemporaryDirectory(prefix="distir-") as made:
        weights = source.weights_path(Path(made)), source.weights
        return RunResult(
            source.module,
            executed(source.module, given, weights, arrays, _silent, settings),
        )
