"""Makes a function of what repeats in the program of a rank, so that it is written once."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.rewriter import InsertPoint, Rewriter

from distir.program import functions, reachable_functions
from distir.transforms.repeats.outliner import outline_function

REPEAT = "torch.repeat"
"""The attribute of a function that only makes the text of a program shorter."""

_FEWEST_OPS = 4
"""Repeats of fewer ops are written out."""


def outline(module: ModuleOp) -> None:
    """
    Outlines what the functions of a per-rank program do repeatedly, such as the collectives
    around the calls of layers, and marks the new functions (`REPEAT`).
    """
    taken = set(functions(module))
    for function in reachable_functions(module):
        for new in outline_function(function, taken, _FEWEST_OPS, independent=True):
            new.attributes[REPEAT] = UnitAttr()
            Rewriter.insert_op(new, InsertPoint.after(function))
