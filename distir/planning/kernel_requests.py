"""Refuses requests for splits of parameters that a kernel would gather again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from distir.dialects.kernel import KernelCallOp
from distir.errors import DistIRError
from distir.planning.annotations import fixed_axes, origin_of, requested_layout
from distir.program import (
    Program,
    functions,
    walk_functions,
)
from distir.sharding.kernel_rule import parse_rule
from distir.sharding.placement import SplitPlacement, placement_in


def check_kernels(module: ModuleOp) -> None:
    """
    Refuses a request for the split of an argument's dimension which a kernel that reads the
    argument keeps whole: every call would gather it. Where a kernel is in the place of ops
    that can be split (a loss with the layer before it), the split was meant for these. Raises
    DistIRError.
    """
    known = functions(module)
    for argument in Program(module).arguments:
        layout = requested_layout(argument.attributes)
        if layout is None:
            continue
        for axis in fixed_axes(argument.attributes):
            placement = placement_in(layout, axis)
            if not isinstance(placement, SplitPlacement):
                continue
            dim = placement.dim
            gathers = [
                call
                for call, index in _kernels_that_read(argument.value, known)
                if not _can_split(call, index, dim)
            ]
            if not gathers:
                continue
            order = [op for _, op in walk_functions(module)]
            call = min(gathers, key=order.index)  # the kernel, not its gradient
            raise DistIRError(
                f"argument {argument.name!r}: {origin_of(argument.attributes, axis)} asks that "
                f"axis {axis!r} splits dimension {dim}, but kernel @{call.symbol}, which reads it, keeps that "
                f"dimension whole (its rule is {call.rule.data!r}), so that each of its calls "
                f"would gather it; leave out the split, or the kernel: the ops that it takes "
                f"the place of may be split there"
            )


def _can_split(call: KernelCallOp, index: int, dim: int) -> bool:
    """Returns whether a kernel's rule lets that dimension of an operand be split."""
    rule = parse_rule(call.rule.data)
    factors = rule.operands[index][dim]
    return any(isinstance(f, str) and f not in rule.kept for f in factors)


def _kernels_that_read(
    value: SSAValue, known: Mapping[str, FuncOp]
) -> Iterator[tuple[KernelCallOp, int]]:
    """
    Yields the calls of kernels with this operand, also in functions that it is passed to,
    with the index of the operand.
    """
    for use in value.uses:
        op = use.operation
        if isinstance(op, KernelCallOp):
            yield op, use.index
        elif isinstance(op, CallOp):
            callee = known[op.callee.string_value()]
            yield from _kernels_that_read(callee.body.block.args[use.index], known)
