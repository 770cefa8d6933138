"""
Finds the values of a StableHLO module in a distributed program that was imported from
the module.

The module is converted again, which gives the same program, and the converter records
the value for the result of each op. Rewrites keep the order of a program's ops. When
calls are replaced by the bodies of functions, the ops of both programs therefore
correspond like the lines of two versions of one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.collective import Collective
from distir.dialects.dist import Dist, Layout, layout_of
from distir.frontends.stablehlo.registry import HloResult
from distir.program import entry_function, functions

WINDOW = 64
"""The most ops that are passed over in one program to find the next of the other."""

AGREEING = 3
"""The number of ops in a row that must agree before programs go on together."""

Key = tuple[str, tuple[tuple[tuple[int, ...], str], ...]]
"""The name of an op, and the shapes and element types of its results."""


def layouts_of_origins(
    made: ModuleOp, held: Sequence[tuple[HloResult, SSAValue]], distributed: ModuleOp
) -> dict[HloResult, set[Layout]]:
    """
    Returns the layouts of the results of StableHLO ops in a distributed program. An op
    in a loop has several layouts if its iterations differ. A result that is not found
    in the distributed program has no layouts.

    `made` is the sequential program that was imported from the StableHLO module. `held`
    lists the values of `made` for results of StableHLO ops.
    """
    values: dict[SSAValue, list[HloResult]] = {}
    for origin, value in held:
        values.setdefault(value, []).append(origin)
    first, second = list(_executed(made)), list(_executed(distributed))
    left, right = [_key(op) for op in first], [_key(op) for op in second]
    found: dict[HloResult, set[Layout]] = {origin: set() for origin, _ in held}
    for i, j in _matches(left, right):
        for before, after in zip(first[i].results, second[j].results, strict=True):
            layout = layout_of(after.type)
            for origin in values.get(before, ()):
                if layout is not None:
                    found[origin].add(layout)
    return found


def _executed(module: ModuleOp) -> Iterator[Operation]:
    """
    Yields the ops of a program in the order in which they run. The ops of a function
    are yielded once for each call.
    """
    known = functions(module)
    waiting: list[Iterator[Operation]] = [_ops(entry_function(module))]
    while waiting:
        op = next(waiting[-1], None)
        if op is None:
            waiting.pop()
        elif isinstance(op, CallOp):
            waiting.append(_ops(known[op.callee.string_value()]))
        elif not isinstance(op, ReturnOp) and not _is_added(op):
            yield op


def _is_added(op: Operation) -> bool:
    """
    Whether rewrites may have added `op`: it only moves values, or makes a constant.
    Rewrites may copy a constant for each user.
    """
    moves = op.dialect_name() in (Collective.name, Dist.name)
    return moves or op.name == "onnx.Constant"


def _ops(function: FuncOp) -> Iterator[Operation]:
    return iter(function.body.block.ops)


def _key(op: Operation) -> Key:
    return op.name, tuple(
        (type_.get_shape(), str(type_.element_type))
        for type_ in op.result_types
        if isinstance(type_, TensorType)
    )


def _matches(left: Sequence[Key], right: Sequence[Key]) -> Iterator[tuple[int, int]]:
    """
    Yields the pairs of positions at which two sequences have equal keys. The sequences
    differ by insertions and removals. Where they differ, the search skips the fewest
    keys after which several keys in a row are equal.
    """
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] == right[j]:
            yield i, j
            i, j = i + 1, j + 1
            continue
        step = _next_agreement(left, right, i, j)
        if step is None:
            # No op nearby has this key, so this op has no counterpart.
            i += 1
            continue
        i, j = i + step[0], j + step[1]


def _next_agreement(
    left: Sequence[Key], right: Sequence[Key], i: int, j: int
) -> tuple[int, int] | None:
    """
    Returns the number of keys to skip in each sequence until the sequences agree again.
    Returns None if the sequences do not agree within a limited number of keys.
    """
    for total in range(1, WINDOW + 1):
        for over in range(total + 1):
            a, b = i + total - over, j + over
            if a >= len(left) or b >= len(right):
                continue
            few = min(AGREEING, len(left) - a, len(right) - b)
            if left[a : a + few] == right[b : b + few]:
                return total - over, over
    return None
