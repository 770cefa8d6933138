"""
Support for `linalg` on tensors: sharding rules and evaluation, both derived from the
indexing maps and bodies of ops. Ops on memrefs are not supported.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects import arith, linalg
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    TensorType,
)
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Operation
from xdsl.ir.affine import AffineExpr, AffineMap

from distir.errors import DistIRError
from distir.foreign.structured import Loops
from distir.interpreters.implementations import register_reference_implementations
from distir.program import describe, made_with
from distir.sharding.decompose import decomposition, in_scope_of
from distir.sharding.rule import Rule, sharding_rule

_STRUCTURED = tuple(
    op for op in linalg.Linalg.operations if issubclass(op, LinalgStructuredOperation)
)
_OTHERS = (linalg.ops.BroadcastOp, linalg.ops.ReduceOp)
"""Structured ops that have lists of dimensions instead of indexing maps."""

_NAMES = tuple(op.name for op in (*_STRUCTURED, *_OTHERS))


def loops_of(op: Operation) -> Loops:
    """
    Returns the op `op` of `linalg` as loops over tensors. Raises DistIRError for an op
    on memrefs.
    """
    if len(op.results) == 0:
        raise DistIRError(
            f"{describe(op)} works on memrefs; DistIR distributes ops on tensors, so do "
            f"that before bufferization"
        )
    if isinstance(op, LinalgStructuredOperation):
        kinds = [kind.data for kind in op.get_iterator_types()]
        return Loops(
            op,
            tuple(m.data for m in op.get_indexing_maps()),
            frozenset(i for i, k in enumerate(kinds) if k != IteratorType.PARALLEL),
            op.body.block,
        )
    listed = op.properties["dimensions"]
    assert isinstance(listed, DenseArrayBase)
    dims = frozenset(int(d) for d in listed.get_values())
    reduces = isinstance(op, linalg.ops.ReduceOp)
    wide = op.operands[0 if reduces else 1].type
    assert isinstance(wide, TensorType)
    rank = wide.get_num_dims()
    narrow = tuple(AffineExpr.dimension(i) for i in range(rank) if i not in dims)
    some, every = AffineMap(rank, 0, narrow), AffineMap.identity(rank)
    maps = (every, some) if reduces else (some, every)
    return Loops(op, maps, dims if reduces else frozenset(), op.regions[0].block)


@sharding_rule(*_NAMES)
def linalg_rule(op: Operation) -> Rule:
    """Returns the sharding rule that follows from an op's indexing maps and body."""
    return loops_of(op).rule()


@decomposition(*_NAMES)
def added_later(op: Operation) -> list[Operation] | None:
    """
    Decomposes an op that adds a sum to its output operand. The new ops are the same op
    with zeros as output operand, and an addition of the original output operand.
    Without the decomposition, every device that computes a part of the sum would add
    the output operand. Returns None for an op that does not add a sum to its output
    operand.
    """
    loops = loops_of(op)
    if not loops.adds_to_outputs or len(op.results) > 1:
        return None
    start = op.operands[-1]
    assert isinstance(start.type, TensorType)
    element: Any = start.type.element_type
    is_float = isinstance(element, AnyFloat)
    number = DenseIntOrFPElementsAttr.from_list(start.type, [0.0 if is_float else 0])
    zero = arith.ConstantOp(number)
    terms = made_with(op, [*op.operands[:-1], zero.result], op.result_types)
    join = arith.AddfOp if is_float else arith.AddiOp
    return in_scope_of(op, [zero, terms, join(terms.results[0], start)])


def _functions() -> type[InterpreterFunctions]:
    """Returns a class that evaluates all ops of `linalg` on arrays."""

    def run(
        self: InterpreterFunctions,
        interpreter: Interpreter,
        op: Operation,
        args: PythonValues,
    ) -> PythonValues:
        return loops_of(op).run(interpreter, args)

    methods = {
        kind.name.replace(".", "_"): impl(kind)(run)
        for kind in (*_STRUCTURED, *_OTHERS)
    }
    return register_impls(type("LinalgFunctions", (InterpreterFunctions,), methods))


register_reference_implementations(_functions())
