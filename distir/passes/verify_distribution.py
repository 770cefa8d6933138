"""`verify-distribution`: checks the layouts of a distributed program."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.sharding.verification import verify_distribution


@dataclass(frozen=True)
class VerifyDistributionPass(DistIRPass):
    """
    Checks a distributed program. Values must be defined before they are used. Every
    tensor must have a layout that fits its shape and mesh. The layouts of an op's
    results must follow from its operands' layouts by its sharding rule. Collectives,
    sends, calls and returns must change or keep layouts correctly. No result of the
    program may be partial. The pass accepts ops of every dialect: an op without a
    sharding rule must work on replicated values. Run it before `simulate`, `project`
    and the target `torch`.
    """

    name = "verify-distribution"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        verify_distribution(op)
