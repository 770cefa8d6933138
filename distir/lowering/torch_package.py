"""Writes a distributed program as a Python package that needs only PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from distir.errors import DistIRError
from distir.lowering.helper_modules import helper_text, with_imports
from distir.lowering.kernel_files import kernel_files
from distir.lowering.program_source import program_source
from distir.program import (
    argument_names,
    arguments_of,
    check_links,
    entry_function,
    result_names,
    updated_arguments,
)
from distir.system.output_files import replaced_files, write_text
from distir.transforms.slicing import evaluation_program
from distir.transforms.step_settings import add_step_settings, has_step_settings

ALWAYS = (
    *("__init__", "main", "runtime", "carriers", "collectives", "tensors"),
    *("modules", "stored_tensors"),
)
"""The helper modules of every package."""

EVALUATION = "evaluation_program"
"""The module of a package with which trainings evaluate."""

USER_KERNELS = "user_kernels"
"""The folder of a package that has copies of users' files."""

TRAINING = ("training",)
"""The helper modules of packages that train."""


def _check_updates(entry: FuncOp) -> dict[int, int]:
    """
    Returns the results that update arguments, with the index of the argument. Raises
    DistIRError for a result of another type than its argument.
    """
    updates = updated_arguments(entry)
    types = entry.function_type
    for result, argument in updates.items():
        before, after = types.inputs.data[argument], types.outputs.data[result]
        name = argument_names(entry)[argument]
        if before != after:
            raise DistIRError(
                f"result {result} updates argument {name!r}, but has another type: "
                f"{after} instead of {before}; a training step must give back what it "
                f"takes, in the same layout"
            )
        if list(updates.values()).count(argument) > 1:
            raise DistIRError(f"several results update argument {name!r}")
    return updates


def _place(weights: Path, directory: str | Path) -> str:
    """Returns the path of weights, from a package's directory if they lie in it."""
    path, folder = weights.resolve(), Path(directory).resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def write_package(
    module: ModuleOp,
    directory: str | Path,
    weights: str | Path | None = None,
    helpers: Sequence[str] = (),
    *,
    evaluation: bool = False,
    compiled: bool = False,
    kernels: Sequence[Path] = (),
) -> Path:
    """
    Writes the per-rank programs of a distributed (or sequential) module to `directory`
    (made if needed), and returns the directory.

    It contains `program.py` and `tables.py`, which are generated, and a file of constants
    if there are long ones; `main.py`, to be started by `torchrun`; helper modules; and
    `manifest.json`, which names the arguments, the results and the weights file. `helpers`
    are further modules that the caller needs. A training step takes its learning rate and
    weight decay as arguments (`add-step-settings`); with `evaluation` the package also
    holds its forward program, in files of its own. If it is `compiled`, `torch.compile` makes
    kernels of its methods, except those that call others. `kernels` are files of users'
    kernels, which the package may contain copies of (`kernel_files`). Raises DistIRError for
    programs that have no torch lowering; nothing is written then.
    """
    check_links(entry_function(module))
    trains = bool(_check_updates(entry_function(module)))
    if trains and has_step_settings(module):
        module = module.clone()
        add_step_settings(module)
    own = kernel_files(module, kernels)
    source = program_source(module, compiled=compiled)
    entry = entry_function(module)
    manifest = {
        "processes": source.processes,
        "classes": [list(c) for c in source.classes],
        "arguments": [
            {"name": argument.name, "role": argument.role}
            for argument in arguments_of(entry)
        ],
        "results": result_names(entry),
        "trains": trains,
        "compiled": compiled,
        "weights": None if weights is None else _place(Path(weights), directory),
        "graphs": source.graphs,
        "kernels": {name: file.digest for name, file in own.items()},
    }
    sources = [source]
    if evaluation:
        forward = evaluation_program(module)
        sources.append(program_source(forward, EVALUATION, compiled=compiled))
    texts = {"manifest.json": json.dumps(manifest, indent=2)}
    needed = {*ALWAYS, *(TRAINING if trains else ()), *helpers}
    needed |= {helper for each in sources for helper in each.helpers}
    for name in sorted(with_imports(needed)):
        texts[f"{name}.py"] = helper_text(name)
    directory = Path(directory)
    try:
        with replaced_files(directory) as made:
            for name, text in texts.items():
                write_text(made / name, text)
            for each in sources:
                each.write(made)
            if own:
                (made / USER_KERNELS).mkdir()
                (made / USER_KERNELS / "__init__.py").touch()
            for name, file in own.items():
                (made / USER_KERNELS / f"{name}.py").write_bytes(file.text)
    except OSError as error:
        raise DistIRError(
            f"cannot write the package to {directory}: {error.strerror or error}"
        ) from error
    return directory
