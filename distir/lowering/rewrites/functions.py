"""
The functions of a rank's program. Repeated ops become functions, so that their text is
written once. Some functions are captured as CUDA graphs or compiled.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.base import REPEAT, is_per_rank
from distir.dialects.dist_attributes import COMPILED, text_attribute
from distir.dialects.kernel import KernelCallOp
from distir.dialects.schedule import CUDA_GRAPH
from distir.dialects.tensors import shape_of
from distir.dialects.torch import (
    NO_GRAPH,
    PRINTABLE,
    AwaitGradientsOp,
    MessageOp,
    StateCopiesOp,
    UpdatesOp,
)
from distir.dialects.train_ops.offload import FetchOp, OffloadOp
from distir.program import describe, functions, reachable_functions
from distir.transforms.repeats.outliner import outline_function, outline_runs

_FEWEST_OPS = 4
"""The smallest number of repeated ops that becomes a function."""
_FEWEST_COMPILED = 8
"""The smallest number of ops between two calls that becomes a compiled function."""


def outline(module: ModuleOp) -> None:
    """
    Outlines groups of ops that the functions of a per-rank program repeat, such as the
    collectives around the calls of layers. Marks the new functions with `REPEAT`.
    """
    taken = set(functions(module))
    for function in reachable_functions(module):
        for new in outline_function(function, taken, _FEWEST_OPS, independent=True):
            new.attributes[REPEAT] = UnitAttr()
            Rewriter.insert_op(new, InsertPoint.after(function))


def outline_between_calls(module: ModuleOp) -> None:
    """
    Moves the ops between two calls of layers, such as the head of a model with its
    loss, into separate functions, so that `compile_leaves` compiles them.
    """
    taken = set(functions(module))
    for function in reachable_functions(module):
        if COMPILED.of(function.attributes) == CUDA_GRAPH or not any(
            isinstance(op, CallOp | AwaitGradientsOp) for op in function.body.block.ops
        ):
            continue
        for new in outline_runs(function, taken, _FEWEST_COMPILED, _stays):
            Rewriter.insert_op(new, InsertPoint.after(function))


def _stays(op: Operation) -> bool:
    """Whether an op cannot be compiled, or is already one kernel for many tensors."""
    kinds = CallOp | MessageOp | StateCopiesOp | UpdatesOp | AwaitGradientsOp
    return isinstance(op, kinds) or bool(_reason(op))


def choose_graphs(program: ModuleOp) -> None:
    """
    Decides which functions with `dist.compiled = "cuda_graph"` CUDA can capture as a
    graph.

    A graph replays the same kernels on the same memory, without the host. A function
    that cannot be captured loses the attribute and gets the reason as `torch.no_graph`.
    As this is the last step before printing, the program is marked as printable.
    """
    program.attributes[PRINTABLE] = UnitAttr()
    known = functions(program)
    for function in reachable_functions(program):
        if COMPILED.of(function.attributes) == CUDA_GRAPH:
            reason = _obstacle(function, known)
            if reason:
                del function.attributes[COMPILED]
                function.attributes[NO_GRAPH] = StringAttr(reason)


def graphs(program: ModuleOp) -> dict[str, str]:
    """
    Returns, by name, the functions of a per-rank program that were chosen for CUDA
    graphs. The entry of a function is the reason why CUDA cannot capture it, or an
    empty string if CUDA can.
    """
    return {
        function.sym_name.data: text_attribute(function.attributes, NO_GRAPH) or ""
        for function in reachable_functions(program)
        if COMPILED.of(function.attributes) == CUDA_GRAPH
        or NO_GRAPH in function.attributes
    }


def compile_leaves(program: ModuleOp) -> None:
    """
    Marks for compilation the functions that call no other functions, such as the
    forward function of a layer. The compiler makes the kernels of such a function once
    for all layers. Functions that call other functions, and functions that are captured
    as CUDA graphs, stay unchanged.
    """
    for function in reachable_functions(program):
        if COMPILED.of(function.attributes) == CUDA_GRAPH:
            continue
        if not any(
            isinstance(op, CallOp | AwaitGradientsOp) for op in function.body.block.ops
        ):
            function.attributes[COMPILED] = COMPILED.attr("inductor")


def _obstacle(function: FuncOp, known: dict[str, FuncOp]) -> str:
    """
    Returns the reason why a function cannot be captured as a CUDA graph, or an empty
    string.
    """
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
    if isinstance(op, AwaitGradientsOp):
        return f"{describe(op)} waits for the caller of the program"
    if isinstance(op, OffloadOp | FetchOp):
        return f"{describe(op)} copies between device and host"
    if isinstance(op, KernelCallOp):
        return f"{describe(op)} is a user's kernel, which may wait for the host"
    if any(_is_dynamic(value.type) for value in op.results):
        return f"{describe(op)} gives a value whose shape depends on other values"
    return ""


def _is_dynamic(type_: object) -> bool:
    return isinstance(type_, TensorType) and min(shape_of(type_), default=0) < 0
