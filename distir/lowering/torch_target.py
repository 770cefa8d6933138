"""Target `torch`: the PyTorch program of every rank, and its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from distir.lowering.program_source import program_source


@dataclass(frozen=True)
class TorchTarget(Target):
    """
    Prints the `program.py` of the package that `distir lower` writes, with a class per
    distinct rank program, followed by its `tables.py`.
    `distir.lowering.torch_package.write_package` adds what runs it.
    """

    name = "torch"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        source = program_source(module)
        output.write(f"{source.text}\n\n# tables.py\n\n{source.tables}")
