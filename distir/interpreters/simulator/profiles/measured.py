"""
The times of ops that were measured one by one (`distir calibrate`).

In addition to curves for classes of ops, a profile may have figures for single ops, by
name. These figures take precedence, because two elementwise ops on a CPU may differ by
a factor of ten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xdsl.ir import Operation

from distir.dialects.kernel import KernelCallOp
from distir.interpreters.simulator.profiles.table import Table


@dataclass(frozen=True)
class OpFigures:
    """
    The time of one op: `overhead` seconds, `per_flop` seconds for each floating-point
    operation, `per_byte` seconds for each byte that the op reads or writes, and
    `beyond_cache` more seconds for each byte over `cache` bytes.
    """

    overhead: float
    per_flop: float = 0.0
    per_byte: float = 0.0
    beyond_cache: float = 0.0
    cache: float = 0.0

    def seconds(self, flops: float, moved: float) -> float:
        """
        Returns the seconds of an op that does `flops` operations and moves `moved`
        bytes.
        """
        seconds = self.overhead + flops * self.per_flop + moved * self.per_byte
        return seconds + max(0.0, moved - self.cache) * self.beyond_cache

    @staticmethod
    def read(table: Table) -> OpFigures:
        """
        Reads the figures of one op. Raises DistIRError for a missing or wrong field.
        """
        figures = OpFigures(
            table.at_least_0("overhead"),
            table.at_least_0("per_flop", 0.0),
            table.at_least_0("per_byte", 0.0),
            table.at_least_0("beyond_cache", 0.0),
            table.at_least_0("cache", 0.0),
        )
        table.finish()
        return figures

    def to_json(self, source: str) -> dict[str, Any]:
        """Returns the figures as JSON data that `read` accepts."""
        names = ("overhead", "per_flop", "per_byte", "beyond_cache", "cache")
        found = {name: getattr(self, name) for name in names}
        kept = {n: v for n, v in found.items() if v or n == "overhead"}
        return {**kept, "source": source}


OpTable = Mapping[str, OpFigures]
"""
Figures of ops by name. The key is the name of an op, or `A of B` for an op A with an
operand from an op B. In that case B may be part of the same library call, or return a
view that A must copy. The key of a user's kernel is the result of `kernel_name`.
"""


def kernel_name(symbol: str) -> str:
    """Returns the name of the user's kernel `symbol` in a table of figures."""
    return f"kernel.call @{symbol}"


def figures_of(op: Operation, table: OpTable) -> OpFigures | None:
    """
    Returns the figures of `op` in `table`, or None if there are none. Figures for `op`
    together with the op that computes an operand take precedence.
    """
    for operand in op.operands:
        owner = operand.owner
        if isinstance(owner, Operation):
            found = table.get(f"{op.name} of {owner.name}")
            if found is not None:
                return found
    return table.get(
        kernel_name(op.symbol) if isinstance(op, KernelCallOp) else op.name
    )
