"""Groups of ops that a schedule has found, and the checks before they are rewritten."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from distir.errors import DistIRError
from distir.program import describe
from distir.scheduling.rewrites.separate import OpGroup


def result_of(group: OpGroup) -> SSAValue:
    """Returns the value that a group computes."""
    return group.ops[-1].results[0]


def check_groups(groups: Sequence[OpGroup], where: str) -> None:
    """
    Refuses groups that have ops in common, and groups of which values other than their
    results are used outside. `where` names the caller in messages. Raises DistIRError.
    """
    taken: dict[tuple[object, ...], OpGroup] = {}
    for group in groups:
        inside = set(group.ops)
        for op in group.ops:
            other = taken.setdefault((group.path, op), group)
            if other is not group:
                raise DistIRError(
                    f"{where}: two of the groups overlap: {describe(op)} is in that which "
                    f"ends with {describe(group.ops[-1])} and in that which ends with "
                    f"{describe(other.ops[-1])}; find a larger pattern, or look in fewer "
                    f"modules"
                )
        for op in group.ops[:-1]:
            for result in op.results:
                _check_inside(result, inside, where, group)


def _check_inside(
    value: SSAValue, inside: set[Operation], where: str, group: OpGroup
) -> None:
    for use in value.uses:
        if use.operation not in inside:
            raise DistIRError(
                f"{where}: {describe(use.operation)} uses what "
                f"{describe(value.owner) if isinstance(value.owner, Operation) else value} "
                f"computes, a value inside of the group that ends with "
                f"{describe(group.ops[-1])}; find a pattern that ends before it"
            )
