"""
Converts branches that depend on values, as `jax.lax.cond` and `jax.lax.switch` make
them.

A program has no control flow, so all branches are computed and the results of one
branch are selected. If the condition is known during the conversion, only the branch
that is taken is converted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from distir.frontends.stablehlo.assembly import op_name
from distir.frontends.stablehlo.registry import ModuleConversion, Values
from distir.frontends.stablehlo.tensors import LazyTensor


def convert_branches(
    converter: ModuleConversion,
    op: Operation,
    operands: Sequence[LazyTensor],
    outer: Values,
) -> list[LazyTensor]:
    """
    Converts `stablehlo.if` or `stablehlo.case`, and returns the results of the chosen
    branch. `outer` are the values that the branches may use.
    """
    [choice] = operands
    blocks = [region.block for region in op.regions]
    last = len(blocks) - 1
    is_if = op_name(op) == "stablehlo.if"
    if choice.scalar is not None:
        # An index that is out of range chooses the last branch.
        index = int(choice.scalar)
        index = 1 - index if is_if else index if 0 <= index <= last else last
        return converter.block(blocks[index], [], outer)
    found = [converter.block(block, [], outer) for block in blocks]
    chosen = found[-1]
    for number in range(last):
        truth = converter.build.base(choice)
        if not is_if:
            truth = _equals(converter, choice, number)
        chosen = [
            _selected(converter, truth, own, other)
            for own, other in zip(found[number], chosen, strict=True)
        ]
    return chosen


def _equals(converter: ModuleConversion, choice: LazyTensor, number: int) -> SSAValue:
    build = converter.build
    wanted = build.constant(np.array(number), choice.element)
    return build.op("Equal", [build.base(choice), wanted], (), i1)


def _selected(
    converter: ModuleConversion, truth: SSAValue, own: LazyTensor, other: LazyTensor
) -> LazyTensor:
    """
    Adds the op that selects between two tensors, and returns a tensor that is `own`
    where the Boolean `truth` is true, else `other`.
    """
    build = converter.build
    if own is other:
        return own
    values = [truth, build.base(own), build.base(other)]
    shape = np.broadcast_shapes(own.base, other.base)
    return LazyTensor.of(build.op("Where", values, shape, own.element), own.shape)
