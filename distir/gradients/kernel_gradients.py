"""
Gradients of users' kernels.

By default a backward computes the reference again and differentiates it. With `autograd`,
or a function of the user's, the gradient is a kernel of its own, whose reference is that
backward: its rule is proved and its work counted like those of any other kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from distir.dialects.kernel import (
    KernelCallOp,
    KernelDefOp,
    KernelResultOp,
    kernel_of,
    kernels,
)
from distir.gradients.rule import GradientBuilder, take_training_forms
from distir.program import erase_dead
from distir.sharding.kernel_parts import flops_of, proved
from distir.sharding.kernel_rule import KernelRule, parse_rule

Active = Callable[[Block, Sequence[SSAValue]], dict[SSAValue, None]]
"""Returns the values of a body that depend differentiably on some of its arguments."""

Backward = Callable[
    [Sequence[Operation], dict[SSAValue, None], dict[SSAValue, SSAValue], Block], None
]
"""
Adds the backward of ops to a block, given the active values among their results; extends
the gradients of values, which initially hold those of the results.
"""


class KernelGradients:
    """
    The gradients of the kernels of one module; each is made once for the same operands.
    """

    def __init__(self, module: ModuleOp, active: Active, backward: Backward):
        self._module = module
        self._active = active
        self._backward = backward
        self._made: dict[tuple[str, tuple[int, ...]], KernelDefOp] = {}

    def through(
        self,
        op: KernelCallOp,
        wanted: Sequence[int],
        gradient: SSAValue,
        build: GradientBuilder,
    ) -> list[SSAValue | None]:
        """
        Adds what computes the gradients of the `wanted` operands of a call, given the
        gradient of its result. Returns one for each operand, None where nothing flows.
        """
        kernel = kernel_of(self._module, op)
        if kernel.gradient is None:
            block, reached = self._block(kernel, wanted)
            found = _inlined(block, [*op.inputs, gradient], build)
        else:
            made = self.kernel(kernel, wanted)
            call = KernelCallOp.of(made, [*op.inputs, gradient])
            found = build.add(call).results
            assert made.wrt is not None
            reached = list(made.wrt.get_values())
        gradients: list[SSAValue | None] = [None] * len(op.inputs)
        for i, value in zip(reached, found, strict=True):
            gradients[i] = value
        return gradients

    def kernel(self, kernel: KernelDefOp, wanted: Sequence[int]) -> KernelDefOp:
        """
        Returns the kernel in the module that computes these gradients of a kernel that
        comes with its own gradient function.
        """
        key = kernel.symbol, tuple(wanted)
        if key not in self._made:
            block, reached = self._block(kernel, wanted)
            made = gradient_kernel(kernel, block, reached)
            known = kernels(self._module)
            names = (f"{made.symbol}_{n}" if n else made.symbol for n in count())
            name = next(name for name in names if name not in known)
            made.properties["sym_name"] = type(made.sym_name)(name)
            self._module.body.block.add_op(made)
            self._made[key] = made
        return self._made[key]

    def _block(
        self, kernel: KernelDefOp, wanted: Sequence[int]
    ) -> tuple[Block, list[int]]:
        """
        Returns the backward of a reference, as a block of its arguments and the gradient of
        its result, and the arguments whose gradients it gives.
        """
        block = kernel.reference.clone().detach_block(0)
        end = block.last_op
        assert isinstance(end, KernelResultOp)
        arguments = list(block.args)
        active = self._active(block, [arguments[i] for i in wanted])
        take_training_forms(block, active)
        ops = [op for op in block.ops if op is not end]
        (result,) = end.values
        given = block.insert_arg(result.type, len(arguments))
        given.name_hint = "gradient"
        block.erase_op(end)
        gradients: dict[SSAValue, SSAValue] = {result: given}
        self._backward(ops, active, gradients, block)
        reached = [i for i in wanted if arguments[i] in gradients]
        found = [gradients[arguments[i]] for i in reached]
        block.add_op(KernelResultOp.create(operands=found))
        erase_dead(block)
        return block, reached


def gradient_kernel(
    kernel: KernelDefOp, block: Block, reached: Sequence[int]
) -> KernelDefOp:
    """
    Returns the kernel that computes the gradients of some arguments of another: its
    reference is that one's backward, its rule follows from that one's.
    """
    assert kernel.gradient is not None
    forward = parse_rule(kernel.rule.data)
    rule = KernelRule(
        (*forward.operands, *forward.results),
        tuple(forward.operands[i] for i in reached),
        forward.kept,
    )
    rule = proved(block, rule)
    autograd, flops = kernel.gradient.data == "autograd", flops_of(block, rule)
    if autograd and kernel.flops is not None:  # the kernel runs once more
        flops = f"{flops} + {kernel.flops.data}" if flops else kernel.flops.data
    return KernelDefOp.of(
        f"{kernel.symbol}_grad",
        kernel.implementation.data if autograd else kernel.gradient.data,
        str(rule),
        Region(block),
        flops=flops,
        options=kernel.options,
        tolerance=None if kernel.tolerance is None else kernel.tolerance.value.data,
        workspace="" if kernel.workspace is None else kernel.workspace.data,
        wrt=reached,
        autograd=autograd,
    )


def _inlined(
    block: Block, operands: Sequence[SSAValue], build: GradientBuilder
) -> list[SSAValue]:
    """Adds the ops of a block on these values; returns its results."""
    values = dict[SSAValue, SSAValue](zip(block.args, operands, strict=True))
    end = block.last_op
    assert end is not None
    for op in block.ops:
        if op is not end:
            build.add(op.clone(values))
    return [values[v] for v in end.operands]
