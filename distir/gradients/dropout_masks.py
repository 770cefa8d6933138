"""
Lets the backward of dropout take the masks of the forward, instead of drawing them again.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, TensorType, i1
from xdsl.rewriter import Rewriter

from distir.dialects.train_ops.dropout import DropoutOp
from distir.gradients.rule import shape
from distir.program import made_with, walk_functions


def with_masks(module: ModuleOp) -> None:
    """Makes every dropout of a program return its mask, which its gradient then takes."""
    for _, op in list(walk_functions(module)):
        if not isinstance(op, DropoutOp) or op.mask is not None:
            continue
        mask = TensorType(i1, shape(op.x))
        new = made_with(op, op.operands, [op.y.type, mask])
        assert isinstance(new, DropoutOp)
        new.y.name_hint = op.y.name_hint
        new.results[1].name_hint = "mask"
        Rewriter.replace_op(op, new, [new.y])
