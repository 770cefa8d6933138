"""Puts a whole sequential program into one floating-point type."""

from __future__ import annotations

from collections.abc import Collection

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, f32, i64

from distir.dialects.onnx import OnnxOp
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.program import argument_names, argument_roles
from distir.transforms.precision.retyping import Float, Retyping, float_of

_LOSSES = frozenset(
    (
        "onnx.LogSoftmax",
        "onnx.NegativeLogLikelihoodLoss",
        "onnx.SoftmaxCrossEntropyLoss",
    )
)
"""
The operators of losses, which compute in 32 bits whatever the type of the rest, as models
do.
"""


def convert(
    module: ModuleOp, element: Float, *, stored: bool, apart: Collection[str] = ()
) -> None:
    """
    Makes a sequential program compute in one type of floats, in place, as a module does
    behind `module.to(dtype)`, but for its losses. Parameters have that type themselves
    (`stored`), or are cast where the program begins, as inputs always are, but for those
    that `apart` names. Buffers and what follows from constants alone, such as rotary
    tables and masks, keep their type, and are cast where they are used. Raises DistIRError
    for a program with calls.
    """
    retyping = Retyping(module, promoting=False)
    roles, names = argument_roles(retyping.function), argument_names(retyping.function)
    for argument, role, name in zip(
        list(retyping.block.args), roles, names, strict=True
    ):
        if float_of(argument) in (None, element) or name in apart:
            continue
        if role == "parameter" and stored:
            retyping.retype(argument, element)
        elif role in ("parameter", "input"):
            retyping.begin(argument, element)
    for op in retyping.block.ops:
        # In a model of 16 bits a cast to these means the type of the rest.
        if isinstance(op, OnnxOp) and op.name == "onnx.Cast":
            (result,) = op.results
            type_ = float_of(result)
            if type_ not in (None, element) and type_.bitwidth == 16:
                retyping.retype(result, element)
                op.properties["to"] = IntegerAttr(onnx_element_type(element), i64)
    retyping.run(lambda op: f32 if op.name in _LOSSES else None)
