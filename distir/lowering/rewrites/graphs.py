"""
Which functions of a rank's program CUDA can capture as one graph (`dist.compiled =
"cuda_graph"`): a graph is replayed with the same kernels on the same memory, without the
host.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation

from distir.dialects.collective import is_per_rank
from distir.dialects.dist import COMPILED
from distir.dialects.kernel import KernelCallOp
from distir.dialects.schedule import CUDA_GRAPH
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.offload import FetchOp, OffloadOp
from distir.program import (
    describe,
    functions,
    reachable_functions,
    text_attribute,
)


def choose_graphs(program: ModuleOp) -> dict[str, str]:
    """
    Returns the functions of a per-rank program that are to be captured, by name, with the
    reason why that cannot be; an empty text if it can. The marks of those that cannot be
    captured are removed.
    """
    known, found = functions(program), dict[str, str]()
    for function in reachable_functions(program):
        if text_attribute(function.attributes, COMPILED) == CUDA_GRAPH:
            reason = _obstacle(function, known)
            found[function.sym_name.data] = reason
            if reason:
                del function.attributes[COMPILED]
    return found


def _obstacle(function: FuncOp, known: dict[str, FuncOp]) -> str:
    """Returns why a function cannot be captured, or an empty text."""
    for op in function.body.block.ops:
        reason = _reason(op)
        if not reason and isinstance(op, CallOp):
            reason = _obstacle(known[op.callee.string_value()], known)
        if reason:
            return reason
    return ""


def _reason(op: Operation) -> str:
    if is_per_rank(op):
        return f"{describe(op)} waits for other devices"
    if isinstance(op, OffloadOp | FetchOp):
        return f"{describe(op)} copies between device and host"
    if isinstance(op, KernelCallOp):
        return f"{describe(op)} is a user's kernel, which may wait for the host"
    if any(_is_dynamic(value.type) for value in op.results):
        return f"{describe(op)} gives a value whose shape depends on other values"
    return ""


def _is_dynamic(type_: object) -> bool:
    return isinstance(type_, TensorType) and min(shape_of(type_), default=0) < 0
