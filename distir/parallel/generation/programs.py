"""The programs with which a parallel module generates tokens."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distir.errors import DistIRError
from distir.frontends.serving import ServingSizes
from distir.parallel.compilation import (
    Request,
    write_interface,
    write_with_constants,
)
from distir.parallel.packages import Package, files_of
from distir.parallel.rank_program import RankProgram
from distir.planning.distribution.options import DistributionOptions

if TYPE_CHECKING:
    from distir.frontends.imported_model import ImportedModel

PREFILL_PROGRAM = "prefill_program"
"""The Python module of a package with the program of prefill; decode is the main one."""


@dataclass(frozen=True)
class Generation:
    """
    The programs of prefill and decode on this rank, for sequences of `sizes`, and the
    `package` that contains both.
    """

    package: Package
    prefill: RankProgram
    decode: RankProgram
    sizes: ServingSizes

    @staticmethod
    def of(folder: Path, device: torch.device, sizes: ServingSizes) -> Generation:
        """
        Returns the programs of the package in `folder`. Every rank must call this
        method.
        """
        package = Package(folder)
        prefill, decode = (
            RankProgram(package, device, program=program)
            for program in (package.module(PREFILL_PROGRAM), package.program)
        )
        return Generation(package, prefill, decode, sizes)

    def __deepcopy__(self, memo: object) -> Generation:
        """Returns the programs themselves, which hold no values of the module."""
        return self


def generation_package(
    module: torch.nn.Module, sizes: ServingSizes, request: Request
) -> dict[str, bytes]:
    """
    Returns the files, by name, of the package with which a Hugging Face model generates
    tokens. Parameters have the layouts of the first program of the module
    (`request.chosen`). Raises DistIRError if the model has no steps of generation, or
    if they cannot be distributed in these layouts.
    """
    _check(request)
    own = request.distribution
    if isinstance(own, DistributionOptions):
        # Decode takes one token of each sequence: micro-batches would only copy caches.
        request = replace(request, distribution=replace(own, k=1))
    imported = _imported(module, sizes, request)
    program = imported.module
    chosen = request.distribute_forward(program)
    with tempfile.TemporaryDirectory() as made:
        folder = write_with_constants(imported, made, request, opaque=False)
        write_interface(folder, ["input_ids"], [], chosen, [])
        return files_of(Path(folder))


def _check(request: Request) -> None:
    """Raises DistIRError if the options of a module exclude generation."""
    forward = request.forward
    refused = {
        "a schedule script": forward.script,
        "float8": forward.float8,
        "torch.autocast": forward.autocast,
        "dtype": forward.dtype,
    }
    for what, is_given in refused.items():
        if is_given:
            raise DistIRError(
                f"generate: the module was parallelized with {what}, with which there are "
                f"no programs of prefill and decode; save_pretrained the model, and "
                f"generate with a package of `distir import --serve`"
            )


def _imported(module: Any, sizes: ServingSizes, request: Request) -> ImportedModel:
    """
    Imports prefill and decode as one program with two entries. Raises DistIRError if
    the model cannot be imported.
    """
    from distir.frontends.imported_model import joined_models
    from distir.frontends.torch.serving.importer import import_serving

    modes = {part: part.training for part in module.modules()}
    try:
        entries = import_serving(
            module,
            sizes,
            check=request.trust.check,
            allow=tuple(request.trust.allow),
        )
    finally:
        for part, mode in modes.items():
            part.training = mode
    for entry in entries.values():
        request.forward.apply(entry.module)
        request.forward.complete(entry.module)
    return joined_models(entries)
