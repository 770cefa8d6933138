"""Writes a distributed program as a Python package that needs only PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from distir.dialects.train_ops.opaque import OpaqueBase
from distir.errors import DistIRError
from distir.lowering.helper_modules import helper_text, with_imports
from distir.lowering.kernel_files import KernelFile, kernel_files
from distir.lowering.program_source import PROGRAM, ProgramSource, program_source
from distir.program import (
    argument_names,
    arguments_of,
    check_links,
    describe,
    entry_function,
    entry_points,
    is_training_step,
    result_names,
    updated_arguments,
)
from distir.program.entries import one_entry
from distir.system.output_files import replaced_files, write_text
from distir.transforms.slicing import evaluation_program
from distir.transforms.step_settings import add_step_settings, has_step_settings

ALWAYS = (
    *("__init__", "main", "runtime", "carriers", "collectives", "meeting"),
    *("tensors", "modules", "stored_tensors"),
)
"""The helper modules that every package contains."""

EVALUATION = "evaluation_program"
"""The name of the module of a package that evaluates during a training."""

USER_KERNELS = "user_kernels"
"""The folder of a package with copies of users' kernel files."""

TRAINING = ("training",)
"""The helper modules that packages with a training step contain."""

GENERATION = ("generation",)
"""The helper modules that packages with a prefill and a decode contain."""


def _check_updates(entry: FuncOp) -> dict[int, int]:
    """
    Returns, by index, the results that update arguments, with the index of the
    argument. Raises DistIRError if a result and its argument have different types, or
    if several results update one argument.
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
    """
    Returns the path of `weights`: relative to `directory` if the file is inside it,
    else absolute.
    """
    path, folder = weights.resolve(), Path(directory).resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _check_no_opaque(module: ModuleOp) -> None:
    """
    Raises DistIRError if a program calls opaque modules, because only the training
    script has these modules.
    """
    for op in module.walk():
        if isinstance(op, OpaqueBase):
            raise DistIRError(
                f"{describe(op)}: the opaque module {op.symbol!r} is in the script that the "
                f"program was made in, and a package has no copy of it; train the model "
                f"with distir.parallelize, which calls the module itself"
            )


def write_package(
    module: ModuleOp,
    directory: str | Path,
    weights: str | Path | None = None,
    helpers: Sequence[str] = (),
    *,
    evaluation: bool = False,
    compiled: bool = False,
    kernels: Sequence[Path] = (),
    opaque: bool = False,
) -> Path:
    """
    Writes the per-rank programs of a distributed or sequential module to `directory`,
    which is created if needed, and returns the directory.

    The package contains the generated `program.py` and `tables.py`, a file of long
    constants if there are any, `main.py` for `torchrun`, helper modules, and
    `manifest.json`, which names the arguments, the results and the file `weights`. A
    training step takes its learning rate and weight decay as arguments
    (`add-step-settings`).

    - `helpers`: further helper modules to include;
    - `evaluation`: whether the package also contains the forward program, in separate
      files;
    - `compiled`: whether `torch.compile` compiles the methods that call no other
      methods;
    - `kernels`: files of users' kernels; the package gets copies of the files that the
      program needs (`kernel_files`);
    - `opaque`: whether the caller of the package gives it opaque modules.

    Raises DistIRError if the program has no torch lowering, and then writes nothing.
    """
    if not opaque:
        _check_no_opaque(module)
    if entry_points(module):
        return _write_entries(module, directory, weights, helpers, compiled, kernels)
    check_links(entry_function(module))
    trains = is_training_step(entry_function(module))
    _check_updates(entry_function(module))
    if trains and has_step_settings(module):
        module = module.clone()
        add_step_settings(module)
    own = kernel_files(module, kernels)
    source = program_source(module, compiled=compiled)
    sources = [source]
    if evaluation:
        forward = evaluation_program(module)
        sources.append(program_source(forward, EVALUATION, compiled=compiled))
    manifest = _manifest(module, source, weights, directory, own, compiled)
    needed = {*ALWAYS, *(TRAINING if trains else ()), *helpers}
    return _write(directory, manifest, sources, needed, own)


def _write_entries(
    module: ModuleOp,
    directory: str | Path,
    weights: str | Path | None,
    helpers: Sequence[str],
    compiled: bool,
    kernels: Sequence[Path],
) -> Path:
    """
    Writes the package of a program with several entries. The last entry is
    `program.py`; each other entry is in a module with the entry's name. The manifest
    has the module of each entry.
    """
    names = list(entry_points(module))
    sources: list[ProgramSource] = []
    modules = {name: f"{name}_program" for name in names[:-1]} | {names[-1]: PROGRAM}
    own: dict[str, KernelFile] = {}
    for name in names:
        part = one_entry(module, name)
        check_links(entry_function(part))
        _check_updates(entry_function(part))
        own |= kernel_files(part, kernels)
        sources.append(program_source(part, modules[name], compiled=compiled))
    last = one_entry(module, names[-1])
    manifest = _manifest(last, sources[-1], weights, directory, own, compiled)
    manifest["graphs"] = {n: why for each in sources for n, why in each.graphs.items()}
    manifest["entries"] = modules
    return _write(directory, manifest, sources, {*ALWAYS, *GENERATION, *helpers}, own)


def _manifest(
    module: ModuleOp,
    source: ProgramSource,
    weights: str | Path | None,
    directory: str | Path,
    kernels: Mapping[str, KernelFile],
    compiled: bool,
) -> dict[str, Any]:
    """
    Returns the content of `manifest.json`. `write_package` explains the parameters.
    """
    entry = entry_function(module)
    return {
        "processes": source.processes,
        "classes": [list(c) for c in source.classes],
        "arguments": [
            {"name": argument.name, "role": argument.role}
            for argument in arguments_of(entry)
        ],
        "results": result_names(entry),
        "trains": is_training_step(entry),
        "compiled": compiled,
        "weights": None if weights is None else _place(Path(weights), directory),
        "graphs": source.graphs,
        "kernels": {name: file.digest for name, file in kernels.items()},
    }


def _write(
    directory: str | Path,
    manifest: Mapping[str, Any],
    sources: Sequence[ProgramSource],
    needed: set[str],
    own: Mapping[str, KernelFile],
) -> Path:
    """
    Writes the files of a package: the manifest, programs, helper modules `needed` and
    users' kernels `own`. Raises DistIRError if a file cannot be written.
    """
    texts = {"manifest.json": json.dumps(manifest, indent=2)}
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
