"""
Applies the ops that leave requests on a program, such as layouts of parameters and of
values that modules compute. Every way to distribute the program obeys the requests.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, TensorType
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective import Collective
from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.dialects.dist_attributes import (
    FIXED_BY,
    RECOMPUTE,
    RECOMPUTE_BY,
    SCOPE,
    STAGE_START,
)
from distir.dialects.schedule import (
    ExpectOp,
    OpaqueModulesOp,
    PlaceOp,
    RecomputeOp,
    ShardOp,
    SplitLinearOp,
    StageOp,
    WholeOp,
)
from distir.dialects.tensors import rank_of, shape_of
from distir.dialects.train_ops.opaque import OpaqueOp
from distir.errors import DistIRError, one_of
from distir.planning.expectations import expect
from distir.planning.modules import ScopedOp
from distir.planning.requests import request
from distir.program import describe, scope_of
from distir.scheduling.actions.groups import recompute_groups
from distir.scheduling.rewrites.separate import OpGroup, separate
from distir.scheduling.run import ScheduleRun, origin, schedule_action
from distir.sharding.mesh import MESH
from distir.sharding.rule import Rule, rule_for
from distir.transforms.memory.checkpoint_policies import check_layer_policy


@schedule_action("schedule.shard")
def shard(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.shard`: requests a split of parameters. Raises DistIRError if the
    dimension does not exist or another request contradicts this one.
    """
    assert isinstance(op, ShardOp)
    length = None if op.run is None else op.run.value.data
    for index in run.parameters_of(op.parameters):
        _split(op, run, index, op.dim.value.data, Shard(op.axis.data, length))


@schedule_action("schedule.whole")
def whole(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.whole`: requests that an axis does not split parameters. Raises
    DistIRError if another request contradicts this one.
    """
    assert isinstance(op, WholeOp)
    for index in run.parameters_of(op.parameters):
        request(run.modules.entry, index, Layout(MESH), [op.axis.data], origin(op))


@schedule_action("schedule.split_linear")
def split_linear(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.split_linear`: requests splits of the weights and biases of linear
    layers. Raises DistIRError if a module is not a linear layer, or if another request
    contradicts this one.
    """
    assert isinstance(op, SplitLinearOp)
    axis, by = op.axis.data, op.by.data
    for scope in run.modules_of(op.modules):
        # A module that is called several times is still one layer.
        products = list({p.op: (p, n, r) for p, n, r in _products(scope, run)}.values())
        if len(products) != 1:
            raise DistIRError(
                f"{origin(op)}: module {scope!r} has {len(products)} matrix products with a "
                f"parameter, but a linear layer has one; name the modules in it, or split "
                f"its parameters"
            )
        product, position, rule = products[0]
        use = product.uses[position]
        summed = [
            dim
            for dim, factors in enumerate(rule.operands[position])
            if factors and not rule.result_factors.intersection(factors)
        ]
        dims = [d for d in range(len(use.dims)) if (d in summed) == (by == "rows")]
        if len(dims) != 1:
            raise DistIRError(
                f"{origin(op)}: {describe(product.op)} has {len(dims)} dimensions of "
                f"{run.modules.names[use.index]!r} that could be its {by}; split "
                f"the parameter itself"
            )
        dim = use.dims[dims[0]]
        _split(op, run, use.index, dim, Shard(axis))
        inputs = run.modules.entry.function_type.inputs.data
        size = shape_of(inputs[use.index])[dim]
        for index in run.modules.parameters(scope):
            if index == use.index or rank_of(inputs[index]) != 1:
                continue
            if by == "rows":
                request(run.modules.entry, index, Layout(MESH), [axis], origin(op))
            elif shape_of(inputs[index]) == (size,):
                _split(op, run, index, 0, Shard(axis))


def _products(scope: str, run: ScheduleRun) -> Iterator[tuple[ScopedOp, int, Rule]]:
    """
    Yields the contractions of module `scope` with a parameter. Each comes with the
    operand index of the parameter and the sharding rule.
    """
    for scoped in run.modules.within(scope):
        for position, use in scoped.uses.items():
            if run.modules.roles[use.index] == "parameter" and len(use.dims) > 1:
                rule = rule_for(scoped.op)
                if rule.flops:
                    yield scoped, position, rule


def _split(op: Operation, run: ScheduleRun, index: int, dim: int, shard: Shard) -> None:
    entry = run.modules.entry
    type_ = entry.function_type.inputs.data[index]
    if dim >= rank_of(type_):
        raise DistIRError(
            f"{origin(op)}: {run.modules.names[index]!r} has no dimension {dim}: its type "
            f"is {type_}"
        )
    asked = Layout(MESH).with_dim(dim, (shard,), rank_of(type_))
    request(entry, index, asked, [shard.axis], origin(op))


@schedule_action("schedule.stage")
def stage(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.stage`: marks the first op of a pipeline stage. Raises DistIRError
    if the stage is the first stage, was requested before or is out of order.
    """
    assert isinstance(op, StageOp)
    for scope in run.modules_of(op.modules):
        first = _entered(op, scope, run)
        if first is next(o for o in _entry_ops(run) if o in run.modules.on_inputs):
            raise DistIRError(
                f"{origin(op)}: the program begins with {scope or 'this'!r}, and the first "
                f"stage begins there anyway; name where the others begin"
            )
        if STAGE_START in first.attributes:
            before = STAGE_START.of(first.attributes)
            raise DistIRError(
                f"{origin(op)}: a stage begins with {describe(first)} already ({before})"
            )
        later = next((o for o in _behind(first) if STAGE_START in o.attributes), None)
        if later is not None:
            raise DistIRError(
                f"{origin(op)}: the stages are out of order: {describe(first)} comes before "
                f"{describe(later)}, with which a stage begins "
                f"({STAGE_START.of(later.attributes)}); ask for stages in the "
                f"order of the program"
            )
        first.attributes[STAGE_START] = STAGE_START.attr(origin(op))


@schedule_action("schedule.recompute")
def recompute(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.recompute`: requests that the backward pass recomputes modules or
    groups of ops. Raises DistIRError if a module is not a call of a function, or if
    another policy was requested before.
    """
    assert isinstance(op, RecomputeOp)
    policy = op.policy.data if op.policy else str(run.value_of(op.knob))  # type: ignore[arg-type]
    check_layer_policy(policy, origin(op))
    if run.is_groups(op.modules):
        recompute_groups(op, run, policy)
        return
    for scope in run.modules_of(op.modules):
        call = _entered(op, scope, run)
        if not isinstance(call, CallOp):
            raise DistIRError(
                f"{origin(op)}: {scope!r} is no call of a function, so that nothing can "
                f"compute it again; run `outline-repeats`, and name a layer"
            )
        # A module that is called several times is computed again each time.
        within = dict.fromkeys(scoped.entered for scoped in run.modules.within(scope))
        for same in within if scope else (call,):
            if isinstance(same, CallOp) and same.callee == call.callee:
                _recompute_call(op, scope, same, policy)


def _recompute_call(op: RecomputeOp, scope: str, call: CallOp, policy: str) -> None:
    before = RECOMPUTE.of(call.attributes)
    if before not in (None, policy):
        raise DistIRError(
            f"{origin(op)}: {scope!r} is to be computed again by policy {policy!r}, but "
            f"is by {before!r} already{_who(call)}; ask for one of these"
        )
    call.attributes[RECOMPUTE] = RECOMPUTE.attr(policy)
    call.attributes.setdefault(RECOMPUTE_BY, StringAttr(origin(op)))


def _who(call: CallOp) -> str:
    by = RECOMPUTE_BY.of(call.attributes)
    return "" if by is None else f" ({by})"


@schedule_action("schedule.expect")
def expect_collectives(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.expect`: stores the numbers of collectives that modules must have.
    Raises DistIRError if a kind of collective does not exist.
    """
    assert isinstance(op, ExpectOp)
    kinds = [kind.name.removeprefix("collective.") for kind in Collective.operations]
    counts = {
        one_of("collective", kind, kinds, origin(op)): count.value.data
        for kind, count in op.collectives.data.items()
        if isinstance(count, IntegerAttr)
    }
    backward = op.backward is not None
    for scope in run.modules_of(op.modules):
        axis, by = op.axis.data, origin(op)
        expect(run.module, scope, counts, axis, by, backward=backward)


def _entry_ops(run: ScheduleRun) -> Iterator[Operation]:
    return iter(run.modules.entry.body.block.ops)


def _behind(op: Operation) -> Iterator[Operation]:
    """Yields the ops after `op` in the block of `op`."""
    following = op.next_op
    while following is not None:
        yield following
        following = following.next_op


def _entered(op: Operation, scope: str, run: ScheduleRun) -> Operation:
    """
    Returns the op of the entry function with which module `scope` begins. Raises
    DistIRError if the module begins inside of a function that the entry function calls.
    """
    inside = run.modules.within(scope) if scope else run.modules.ops
    ops = list(dict.fromkeys(scoped.entered for scoped in inside))
    # What comes from parameters and constants alone belongs to no stage.
    entered = next((o for o in ops if o in run.modules.on_inputs), ops[0])
    own = scope_of(entered)
    if isinstance(entered, CallOp) and own != scope and own.startswith(f"{scope}."):
        return entered
    if isinstance(entered, CallOp) and own != scope:
        raise DistIRError(
            f"{origin(op)}: {scope!r} is inside of {describe(entered)}, which is one piece "
            f"of the program; name {own or 'a module that holds all of it'!r}, or run "
            f"`inline-calls` first"
        )
    return entered


@schedule_action("schedule.place")
def place(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.place`: requests a layout of a value that modules compute. Raises
    DistIRError if the value does not exist or another request contradicts this one.
    """
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
    Returns the values that a module computes and other ops use, in the order of the
    program, for every run of the module. `inside` are the ops of the module.
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
    """
    Adds a `dist.constrain` of `value` before all its uses. Raises DistIRError if the
    same axis was requested before.
    """
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
                f"already ({_requester(before, axis)}); ask for one of these"
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


def _requester(constrain: ConstrainOp, axis: str) -> str:
    by = constrain.attributes.get(FIXED_BY)
    found = by.data.get(axis) if isinstance(by, DictionaryAttr) else None
    return found.data if isinstance(found, StringAttr) else f"`{constrain.name}`"


@schedule_action("schedule.opaque")
def opaque(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.opaque`: checks that the import left the modules opaque. Raises
    DistIRError if the import traced one of the modules.
    """
    assert isinstance(op, OpaqueModulesOp)
    for scope in run.modules_of(op.modules):
        found = (scoped.op for scoped in run.modules.within(scope))
        if not any(isinstance(each, OpaqueOp) for each in found):
            raise DistIRError(
                f"{origin(op)}: {scope or 'the model'!r} was traced when the model was "
                f"imported, so that it is too late to make it opaque; give the schedule to "
                f"distir.parallelize, or call distir.opaque in the model"
            )
