"""What repeats in the program of a rank becomes a function, so that it is written once."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import InsertPoint, Rewriter

from distir.program import entry_function, functions
from distir.transforms.repeats.outliner import outline_function

_FEWEST_OPS = 4
"""Shorter repeats are written out."""


def outline(module: ModuleOp) -> None:
    """
    Outlines what the entry function of a per-rank program does again and again, such as the
    collectives around the calls of layers.
    """
    entry = entry_function(module)
    taken = set(functions(module))
    for function in outline_function(entry, taken, _FEWEST_OPS, independent=True):
        Rewriter.insert_op(function, InsertPoint.after(entry))
