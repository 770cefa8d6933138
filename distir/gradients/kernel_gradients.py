"""
Gradients of users' kernels.

By default, a backward pass recomputes the kernel's reference and differentiates it.
With `autograd`, or with a gradient function of the user, the gradient is a separate
kernel. The reference of the gradient kernel is the backward pass of the original
reference. As for any kernel, the sharding rule of the gradient kernel is proved and its
work is counted.
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
"""
Returns the values of a body that depend differentiably on the given arguments, in
program order.
"""

Backward = Callable[
    [Sequence[Operation], dict[SSAValue, None], dict[SSAValue, SSAValue], Block], None
]
"""
Appends the backward of ops to a block, given the active values among their results.
Extends the table of gradients, which holds those of the results at first.
"""


class KernelGradients:
    """
    The gradients of one module's kernels. A gradient kernel is made once for each
    kernel and list of operands whose gradients are wanted.
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
        Adds the ops that compute the gradients of a call's operands at the indices
        `wanted`. `gradient` is the gradient of the call's result. Returns one entry per
        operand: the operand's gradient, or None if the operand has no gradient.
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
        Returns the kernel that computes the gradients of the arguments `wanted` of
        `kernel`, which must define a gradient function. Adds the gradient kernel to the
        module if the module does not have it yet.
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
        Returns the backward pass of a kernel's reference, and the indices of the
        arguments whose gradients the backward pass returns. The backward pass is a
        block that takes the reference's arguments and the gradient of the reference's
        result.
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
    Returns the kernel that computes the gradients of the arguments `reached` of
    `kernel`. The reference of the new kernel is `block`, the backward pass of the
    reference of `kernel`. The rule of the new kernel is derived from the rule of
    `kernel`.
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
    """
    Adds copies of a block's ops that use `operands` in place of the block's arguments.
    Returns the values that the block returns.
    """
    values = dict[SSAValue, SSAValue](zip(block.args, operands, strict=True))
    end = block.last_op
    assert end is not None
    for op in block.ops:
        if op is not end:
            build.add(op.clone(values))
    return [values[v] for v in end.operands]
