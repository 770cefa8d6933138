"""
Applies the ops that find groups of ops by a pattern, and the ops that change such
groups or replace them by users' kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import COMPILED, RECOMPUTE, RECOMPUTE_BY
from distir.dialects.schedule import (
    DecomposeOp,
    FindOp,
    FuseOp,
    KernelOp,
    NodeOp,
    RecomputeOp,
    ReplaceOp,
)
from distir.errors import DistIRError, listed
from distir.planning.modules import ScopedOp
from distir.program import describe
from distir.scheduling.rewrites.kernels import KernelMaker, check_groups, result_of
from distir.scheduling.rewrites.match import find_pattern
from distir.scheduling.rewrites.outline import GroupOutliner
from distir.scheduling.rewrites.replacement import difference, put, replacing
from distir.scheduling.rewrites.separate import CallPath, OpGroup, separate
from distir.scheduling.run import ScheduleRun, origin, schedule_action
from distir.sharding.decompose import decompose_by_name


@schedule_action("schedule.find")
def find(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.find`: finds the groups of ops that compute the pattern. Raises
    DistIRError if there is no such group, unless `op` is optional.
    """
    assert isinstance(op, FindOp)
    scopes = run.modules_of(op.modules)
    found: dict[tuple[object, ...], OpGroup] = {}
    for scope in scopes:
        by_path: dict[CallPath, list[Operation]] = {}
        for scoped in run.modules.within(scope) if scope else run.modules.ops:
            by_path.setdefault(scoped.path, []).append(scoped.op)
        for path, ops in by_path.items():
            for match in find_pattern(op.pattern.block, ops):
                group = OpGroup(path, match.ops, match.inputs)
                found[path, match.ops] = group
    if not found and op.optional is None:
        wanted = [n.op.data for n in op.pattern.block.ops if isinstance(n, NodeOp)]
        there = {scoped.op.name for s in scopes for scoped in _within(s, run)}
        missing = [name for name in dict.fromkeys(wanted) if name not in there]
        raise DistIRError(
            f"{origin(op)}: {listed([s or 'the model' for s in scopes])} "
            f"{'has' if len(scopes) == 1 else 'have'} no ops that compute the pattern "
            f"({', '.join(wanted)})"
            + (f"; there is no {missing[0]} in it" if missing else "")
            + "; look at the program's ops, or make it `optional`"
        )
    run.set_groups(op.result, list(found.values()))


def _within(scope: str, run: ScheduleRun) -> Sequence[ScopedOp]:
    return run.modules.within(scope) if scope else run.modules.ops


@schedule_action("schedule.fuse")
def fuse(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.fuse`: moves each group into a function of its own. Raises
    DistIRError if the groups overlap.
    """
    assert isinstance(op, FuseOp)
    groups = run.groups_of(op.groups)
    check_groups(groups, origin(op))
    outliner = GroupOutliner(run.module, op.symbol.data, {COMPILED: op.backend})
    for group in separate(run.module, groups):
        outliner.outline(group.ops, result_of(group))
    run.consume(op.groups, op)
    run.rewritten(op)


@schedule_action("schedule.replace")
def replace(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.replace`: replaces each group by an ONNX operator. Raises
    DistIRError if the operator does not compute the same as the group.
    """
    assert isinstance(op, ReplaceOp)
    groups = run.groups_of(op.groups)
    check_groups(groups, origin(op))
    attributes = op.having.data if isinstance(op.having, DictionaryAttr) else {}
    tried: set[tuple[Operation, ...]] = set()
    for group in groups:
        if group.ops in tried:
            continue
        tried.add(group.ops)
        try:
            new = replacing(op.op.data, attributes, group.inputs)
            problem = difference(group.ops, result_of(group), new)
        except DistIRError as error:
            raise DistIRError(f"{origin(op)}: onnx.{op.op.data}: {error}") from error
        new.erase()
        if problem is not None:
            raise DistIRError(
                f"{origin(op)}: onnx.{op.op.data} does not compute what the group does that "
                f"ends with {describe(group.ops[-1])}: {problem}"
            )
    moved: dict[SSAValue, SSAValue] = {}  # one group may use what another computed
    for group in separate(run.module, groups):
        inputs = [moved.get(value, value) for value in group.inputs]
        new, result = replacing(op.op.data, attributes, inputs), result_of(group)
        put(group.ops, result, new)
        moved[result] = new.results[0]
    run.consume(op.groups, op)
    run.rewritten(op)


@schedule_action("schedule.decompose")
def decompose_ops(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.decompose`: replaces ops by their decompositions. Raises
    DistIRError if none of the ops has a decomposition.
    """
    assert isinstance(op, DecomposeOp)
    if run.is_groups(op.target):
        inside = [(g.path, o) for g in run.groups_of(op.target) for o in g.ops]
    else:
        scopes = run.modules_of(op.target)
        inside = [(s.path, s.op) for scope in scopes for s in _within(scope, run)]
    known: dict[Operation, bool] = {}
    for _, inner in inside:
        if inner not in known:
            parts = decompose_by_name(inner)
            known[inner] = parts is not None
            for part in reversed(parts or []):
                part.erase()
    groups = [OpGroup(path, (inner,)) for path, inner in inside if known[inner]]
    if not groups:
        names = listed(sorted({inner.name for _, inner in inside}), 8)
        raise DistIRError(
            f"{origin(op)}: nothing in it has a decomposition (there are {names}); one has "
            f"an onnx.Gemm or onnx.Conv with a bias, or an op registered with "
            f"`distir.sharding.decompose`"
        )
    for group in separate(run.module, groups):
        (inner,) = group.ops
        parts = decompose_by_name(inner)
        assert parts is not None
        Rewriter.replace_op(inner, parts)
    if run.is_groups(op.target):
        run.consume(op.target, op)
    run.rewritten(op)


def recompute_groups(op: RecomputeOp, run: ScheduleRun, policy: str) -> None:
    """
    Requests that the backward pass recomputes the groups of `op`. In a called function,
    the ops of a group are marked one by one. In the entry function, a group becomes a
    call, and the call is marked. Raises DistIRError if `policy` is not "full".
    """
    if policy != "full":
        raise DistIRError(
            f"{origin(op)}: groups of ops are computed again by the policy 'full' alone, "
            f"not by {policy!r}"
        )
    groups = run.groups_of(op.modules)
    check_groups(groups, origin(op))
    outliner = GroupOutliner(run.module, "recomputed")
    for group in separate(run.module, groups):
        if group.ops[0].parent_op() is run.modules.entry:
            call = outliner.outline(group.ops, result_of(group))
            call.attributes[RECOMPUTE] = RECOMPUTE.attr(policy)
            call.attributes[RECOMPUTE_BY] = RECOMPUTE_BY.attr(origin(op))
        else:
            # Whether the result is kept is up to the ops after the group.
            for inner in group.ops[:-1]:
                inner.attributes[RECOMPUTE] = RECOMPUTE.attr(policy)
    run.consume(op.modules, op)
    run.rewritten(op)


@schedule_action("schedule.kernel")
def replace_by_kernel(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.kernel`: replaces each group by a user's kernel. Raises
    DistIRError if the kernel cannot replace a group.
    """
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
