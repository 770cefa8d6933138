"""Action of the op that requests layouts for what modules compute."""

from __future__ import annotations

from xdsl.dialects.builtin import DictionaryAttr, StringAttr, TensorType
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.dialects.dist_attributes import FIXED_BY, SCOPE
from distir.dialects.schedule import PlaceOp
from distir.dialects.tensors import rank_of
from distir.errors import DistIRError
from distir.planning.distribution.meshes import MESH
from distir.planning.modules import ScopedOp
from distir.program import describe
from distir.scheduling.rewrites.separate import OpGroup, separate
from distir.scheduling.run import ScheduleRun, origin, schedule_action


@schedule_action("schedule.place")
def place(op: Operation, run: ScheduleRun) -> None:
    """See `PlaceOp`. Raises DistIRError."""
    assert isinstance(op, PlaceOp)
    groups: list[OpGroup] = []
    for scope in run.modules_of(op.modules):
        inside = list(run.modules.within(scope) if scope else run.modules.ops)
        found = _outputs(inside)
        index = op.index.value.data
        if index >= len(found):
            raise DistIRError(
                f"{origin(op)}: there is no output {index} of {scope or 'the model'!r}, which "
                f"has {len(found)}; they count from 0, in the order of the program"
            )
        value, scoped = found[index]
        _check(op, value)
        groups.append(OpGroup(scoped.path, (scoped.op,), (value,)))
    for group in separate(run.module, groups):
        (value,) = group.inputs
        _constrain(op, value)
    run.rewritten(op)


def _outputs(inside: list[ScopedOp]) -> list[tuple[OpResult, ScopedOp]]:
    """
    Returns the values that ops of a module compute and that others use, in the order of
    the program; of a module that runs several times, those of every run.
    """
    ops = {(s.path, s.op) for s in inside if not isinstance(s.op, ReturnOp)}
    found: list[tuple[OpResult, ScopedOp]] = []
    for scoped in inside:
        for result in scoped.op.results:
            users = [use.operation for use in result.uses]
            if any((scoped.path, user) not in ops for user in users):
                found.append((result, scoped))
    return found


def _check(op: PlaceOp, value: SSAValue) -> None:
    owner = value.owner
    assert isinstance(owner, Operation)
    if not isinstance(value.type, TensorType):
        raise DistIRError(
            f"{origin(op)}: {describe(owner)} computes {value.type}, which has no layout"
        )
    if op.dim is not None and op.dim.value.data >= rank_of(value.type):
        raise DistIRError(
            f"{origin(op)}: what {describe(owner)} computes has no dimension "
            f"{op.dim.value.data}: its type is {value.type}"
        )


def _constrain(op: PlaceOp, value: SSAValue) -> None:
    """Puts a `dist.constrain` behind a value, before all of its uses."""
    axis, layout = op.axis.data, Layout(MESH)
    if op.dim is not None:
        shard = Shard(axis, None)
        layout = layout.with_dim(op.dim.value.data, (shard,), rank_of(value.type))
    owner = value.owner
    assert isinstance(owner, Operation) and not isinstance(owner, CallOp)
    before = owner
    while isinstance(before, ConstrainOp):
        if before.fixes(axis):
            raise DistIRError(
                f"{origin(op)}: what axis {axis!r} does to {describe(before)} is asked for "
                f"already ({_who(before, axis)}); ask for one of these"
            )
        before = before.source.owner
    constrain = ConstrainOp(value, layout, [axis])
    constrain.attributes[FIXED_BY] = DictionaryAttr({axis: StringAttr(origin(op))})
    if SCOPE in owner.attributes:
        constrain.attributes[SCOPE] = owner.attributes[SCOPE]
    constrain.result.name_hint = value.name_hint
    Rewriter.insert_op(constrain, InsertPoint.after(owner))
    value.replace_uses_with_if(
        constrain.result, lambda use: use.operation is not constrain
    )


def _who(constrain: ConstrainOp, axis: str) -> str:
    by = constrain.attributes.get(FIXED_BY)
    found = by.data.get(axis) if isinstance(by, DictionaryAttr) else None
    return found.data if isinstance(found, StringAttr) else f"`{constrain.name}`"
