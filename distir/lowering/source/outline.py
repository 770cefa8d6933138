"""Makes a function of what repeats in the program of a rank, so that it is written once."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import InsertPoint, Rewriter

from distir.program import functions, reachable_functions
from distir.transforms.repeats.outliner import outline_function

_FEWEST_OPS = 4
"""Repeats of fewer ops are written out."""


def outline(module: ModuleOp) -> None:
    """
    Outlines what the functions of a per-rank program do repeatedly, such as the collectives
    around the calls of layers.
    """
    taken = set(functions(module))
    for function in reachable_functions(module):
        for new in outline_function(function, taken, _FEWEST_OPS, independent=True):
            Rewriter.insert_op(new, InsertPoint.after(function))
