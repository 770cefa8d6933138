"""The rule of calls of users' kernels, which they carry as text."""

from __future__ import annotations

from xdsl.ir import Operation

from distir.dialects.kernel import KernelCallOp
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.sharding.kernel_rule import parse_rule
from distir.sharding.rule import Rule, sharding_rule


@sharding_rule("kernel.call")
def kernel_call(op: Operation) -> Rule:
    """The rule that the call repeats from its kernel."""
    assert isinstance(op, KernelCallOp)
    # The split of factors is only computed for ops with FLOPs, and the workspace depends on
    # it.
    memory_bound = "" if op.workspace is None else "1"
    try:
        return parse_rule(op.rule.data).rule(
            [shape_of(value.type) for value in op.inputs],
            [shape_of(value.type) for value in op.outputs],
            memory_bound if op.flops is None else op.flops.data,
        )
    except DistIRError as error:
        raise DistIRError(f"kernel.call of @{op.symbol}: {error}") from error
