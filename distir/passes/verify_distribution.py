"""`verify-distribution`: type-checks distributed programs."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.sharding.verification import verify_distribution


@dataclass(frozen=True)
class VerifyDistributionPass(DistIRPass):
    """
    Checks a distributed program: values are defined before they are used; every tensor has
    a layout that fits its shape and mesh; every op's result layouts are what its sharding
    rule gives for its operands' layouts; collectives, sends, calls and returns change or
    keep layouts exactly as they must; nothing partial leaves the program. It works for ops
    of every dialect: those without a rule must be replicated. Run it before `simulate`,
    `project` and the target `torch`.
    """

    name = "verify-distribution"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        verify_distribution(op)
