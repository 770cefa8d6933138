"""
Values that share memory, like PyTorch's strided tensors. Ops such as `transpose`,
`split` and `expand` return a view of their operand's memory. An op that needs the
elements in a different order copies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from distir.dialects.constants import constant_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import ELEMENTWISE, VIEWS
from distir.interpreters.simulator.engine.compiled import (
    CompiledStep,
    ComputationStep,
    OpStep,
)

Shape = tuple[int, ...]
Strides = tuple[int, ...] | None
"""
The distance in memory between neighbours along each dimension, in elements. None means
row-major order.
"""


@dataclass(frozen=True)
class Placed:
    """
    The memory of an op's results. `strides` holds the strides of each result, `shared`
    tells whether the results use the memory of the first operand, and `copied` holds
    the indices of the operands that the op copies while it runs.
    """

    strides: tuple[Strides, ...]
    shared: bool = True
    copied: tuple[int, ...] = ()


_Rule = Callable[[Operation, Sequence[Shape], Sequence[Strides]], Placed]
"""
A function that returns the memory of an op's results, given the op, the shapes of its
operands and results, and the strides of its operands.
"""

_RULES: dict[str, tuple[_Rule, bool]] = {}
"""
The rules by name of op. Each has a flag that tells whether the results may share
memory, or not be row-major, even if all operands are row-major.
"""


def _rule(*names: str, begins: bool = False) -> Callable[[_Rule], _Rule]:
    """
    Registers a rule for the ops with the given names. `begins` tells whether their
    results may share memory, or not be row-major, even if all operands are row-major.
    """

    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names, (rule, begins)))
        return rule

    return register


def share_memory(steps: Iterable[CompiledStep]) -> None:
    """
    Sets, for each step of a function, the memory that the step's results use. Arguments
    and results of calls are taken to be row-major. Also prevents ops from working in
    place in a part of another value's memory, or in memory in which one element stands
    for many elements of the value.
    """
    known: dict[int, tuple[int, ...]] = {}
    parts: set[int] = set()
    for step in steps:
        if isinstance(step, OpStep) and step.reusable and parts:
            step.reusable = tuple([s for s in step.reusable if s not in parts])
        if isinstance(step, ComputationStep):
            _place_results(step, known)
            if step.is_part or step.view_of in parts:
                parts.update(step.defined)


def _place_results(step: ComputationStep, known: dict[int, tuple[int, ...]]) -> None:
    """Sets the memory that the results of a step use. `known` maps slots to strides."""
    found = _rule_of(step.op)
    if found is None:
        return
    rule, begins = found
    given = [known.get(slot) for slot in step.operands]
    if not begins and not any(given):
        return
    if VIEWS.of(step.op) and step.view_of is None:
        return
    placed = rule(step.op, step.shapes, given)
    shapes = step.shapes[len(step.operands) :]
    step.view_of = step.operands[0] if placed.shared else None
    step.is_part = placed.shared and prod(shapes[0]) != prod(step.shapes[0])
    step.workspace += sum(step.operand_bytes[i] for i in placed.copied)
    for slot, shape, strides in zip(step.defined, shapes, placed.strides, strict=True):
        if strides is not None and not _is_row_major(shape, strides):
            known[slot] = strides


def _rule_of(op: Operation) -> tuple[_Rule, bool] | None:
    """
    Returns the rule of an op and the flag `begins` of the rule (see `_rule`), or None
    if the op has no rule.
    """
    if op.name in _RULES:
        return _RULES[op.name]
    if VIEWS.of(op):
        return _reshape, False
    return (_elementwise, False) if ELEMENTWISE.of(op) else None


def _row_major(shape: Shape) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _is_row_major(shape: Shape, strides: tuple[int, ...]) -> bool:
    return all(
        size == 1 or stride == own
        for size, stride, own in zip(shape, strides, _row_major(shape), strict=True)
    )


def _given(shapes: Sequence[Shape], strides: Sequence[Strides]) -> tuple[int, ...]:
    return _row_major(shapes[0]) if strides[0] is None else strides[0]


@_rule("onnx.Transpose", begins=True)
def _transpose(
    op: Operation, shapes: Sequence[Shape], given: Sequence[Strides]
) -> Placed:
    assert isinstance(op, OnnxOp)
    strides = _given(shapes, given)
    order = op.attribute("perm", list(reversed(range(len(strides)))))
    return Placed((tuple([strides[i] for i in order]),))


@_rule("onnx.Split", begins=True)
def _part(op: Operation, shapes: Sequence[Shape], given: Sequence[Strides]) -> Placed:
    strides = _given(shapes, given)
    return Placed((strides,) * len(op.results))


@_rule("onnx.Slice", begins=True)
def _slice(op: Operation, shapes: Sequence[Shape], given: Sequence[Strides]) -> Placed:
    steps = constant_of(op.operands[4]) if len(op.operands) > 4 else None
    if len(op.operands) > 4 and (steps is None or (steps != 1).any()):
        return Placed((None,), shared=False)
    return _part(op, shapes, given)


@_rule("onnx.Expand", begins=True)
def _expand(op: Operation, shapes: Sequence[Shape], given: Sequence[Strides]) -> Placed:
    before, after = shapes[0], shapes[-1]
    new = len(after) - len(before)
    strides = _given(shapes, given)
    kept = [
        stride if size == whole else 0
        for stride, size, whole in zip(strides, before, after[new:], strict=True)
    ]
    return Placed(((*[0] * new, *kept),))


def _reshape(
    op: Operation, shapes: Sequence[Shape], given: Sequence[Strides]
) -> Placed:
    strides = _viewed(shapes[0], given[0] or _row_major(shapes[0]), shapes[-1])
    return Placed((strides,), shared=strides is not None)


@_rule("train.attention")
def _elementwise(
    op: Operation, shapes: Sequence[Shape], given: Sequence[Strides]
) -> Placed:
    """
    Gives the first result the strides of the operands that have the result's shape, if
    these strides are equal and leave no gaps. All other results are row-major.
    """
    own = shapes[len(given)]
    alike = {s for s, shape in zip(given, shapes, strict=False) if shape == own}
    kept = alike.pop() if len(alike) == 1 else None
    kept = kept if kept is not None and _is_dense(own, kept) else None
    others: list[Strides] = [None] * (len(op.results) - 1)
    return Placed((kept, *others), shared=False)


@_rule("onnx.MatMul")
def _product(
    op: Operation, shapes: Sequence[Shape], given: Sequence[Strides]
) -> Placed:
    """
    Copies each operand of a matrix product whose leading dimensions cannot be read as a
    single dimension without a copy. The leading dimensions are the batch dimensions of
    both operands or, if the second operand is a single matrix, all but the last
    dimension of the first operand.
    """
    kept = 1 if len(shapes[1]) <= 2 else 2
    copied = [
        i
        for i, strides in enumerate(given)
        if strides is not None
        and not _is_one(shapes[i], strides, len(shapes[i]) - kept)
    ]
    return Placed((None,), shared=False, copied=tuple(copied))


@_rule("train.attention_grad", begins=True)
def _by_token(
    op: Operation, shapes: Sequence[Shape], given: Sequence[Strides]
) -> Placed:
    """
    Places gradients of shape (batch, heads, length, size) in memory as (batch, length,
    heads, size).
    """
    strides: list[Strides] = []
    for shape in shapes[len(op.operands) :]:
        if len(shape) == 4:
            _, heads, length, size = shape
            strides.append((heads * length * size, size, heads * size, 1))
        else:
            strides.append(None)
    return Placed(tuple(strides), shared=False)


def _is_one(shape: Shape, strides: tuple[int, ...], dims: int) -> bool:
    """
    Whether the first `dims` dimensions can be read as one dimension without a copy.
    """
    return _viewed(shape[:dims], strides[:dims], (prod(shape[:dims]),)) is not None


def _is_dense(shape: Shape, strides: tuple[int, ...]) -> bool:
    """
    Whether the elements of a tensor fill a contiguous piece of memory, in any order.
    """
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _viewed(shape: Shape, strides: tuple[int, ...], new: Shape) -> Strides:
    """
    Returns the strides of a tensor that is viewed in the shape `new`, or None if the
    view needs a copy.
    """
    # Runs of dimensions that are one in memory, last first: [elements, stride].
    runs: list[list[int]] = []
    for size, stride in reversed(list(zip(shape, strides, strict=True))):
        if size == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1][0] *= size
        else:
            runs.append([size, stride])
    found: list[int] = []
    runs.reverse()
    left, step = runs.pop() if runs else (1, 1)
    for size in reversed(new):
        if size > 1 and left == 1 and runs:
            left, step = runs.pop()
        if left % size:
            return None
        found.append(step)
        left, step = left // size, step * size
    return tuple(reversed(found))
