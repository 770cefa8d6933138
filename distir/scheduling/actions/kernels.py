"""Action of the op that replaces groups of ops by users' kernels."""

from __future__ import annotations

from xdsl.ir import Operation

from distir.dialects.schedule import KernelOp
from distir.errors import DistIRError
from distir.scheduling.groups import check_groups
from distir.scheduling.rewrites.kernels import KernelMaker
from distir.scheduling.rewrites.separate import separate
from distir.scheduling.run import ScheduleRun, origin, schedule_action


@schedule_action("schedule.kernel")
def replace_by_kernel(op: Operation, run: ScheduleRun) -> None:
    """See `KernelOp`. Raises DistIRError."""
    assert isinstance(op, KernelOp)
    groups = run.groups_of(op.groups)
    check_groups(groups, origin(op))
    maker = KernelMaker(run.module, op.attributes)
    for group in separate(run.module, groups):
        try:
            maker.replace(group)
        except DistIRError as error:
            raise DistIRError(
                f"{origin(op)}: kernel {op.symbol.data!r} ({op.implementation.data}): {error}"
            ) from error
    run.consume(op.groups, op)
    run.rewritten(op)
