"""Fuses a product of tensors and an addition."""

from __future__ import annotations

from xdsl.dialects.builtin import AnyFloat

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.tensors import known_shape
from distir.lowering.rewrites.torch_call import fused
from distir.transforms.patterns.match import element, producer, used_once


def fuse_multiply_add(op: OnnxOp) -> bool:
    """
    Fuses Mul of two tensors, as large as the result or broadcast to it, and Add into
    addcmul; returns whether it did.
    """
    if op.name != "onnx.Add" or not isinstance(element(op.results[0]), AnyFloat):
        return False
    shape = known_shape(op.results[0])
    if not shape or known_shape(op.operands[0]) != known_shape(op.operands[1]):
        return False
    for product, rest in (op.operands, reversed(op.operands)):
        multiply = producer(product, "Mul")
        if multiply is None or not used_once(product):
            continue
        # A number is a Python number for Mul, and would have to be a tensor here.
        if any(not known_shape(factor) for factor in multiply.operands):
            continue
        fused(op, "torch.addcmul({0}, {1}, {2})", [rest, *multiply.operands])
        return True
    return False
