"""
Classifies ops by the time at which they run: for each micro-batch, or once before or
after all micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from xdsl.dialects.builtin import i1
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.dist import ReshardOp
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.batch_normalization import BatchNormVarianceOp
from distir.errors import DistIRError
from distir.program import argument_roles, describe, updated_arguments
from distir.sharding.placement import REPLICATED, ReplicatedPlacement, SplitPlacement
from distir.transforms.pipelines.over_time import (
    gathers_micro_batches,
    over_time,
    works_on_parts,
)


class WholeBatchNeeded(DistIRError):
    """
    Raised if an op on micro-batches depends on a value of the whole batch. A program
    with this op cannot be divided into micro-batches, whatever the number of
    micro-batches and the devices.
    """


class Kind(Enum):
    """
    The time at which an op of a program over micro-batches runs.

    - `EACH`: once for every micro-batch;
    - `BEFORE`: once, before ops of kind `EACH`; the op depends on whole inputs, or does
      not depend on the batch;
    - `AFTER`: once, on values that combine the micro-batches;
    - `DIVIDE`: for every micro-batch, to take the micro-batch's part of a whole value.
    """

    EACH = "each"
    BEFORE = "before"
    AFTER = "after"
    DIVIDE = "divide"


def classified(function: FuncOp, micro_batches: int) -> dict[Operation, Kind]:
    """
    Returns the kind of each op of `function`. The kind follows from the placements of
    operands and results on the micro-batch axis. If there is a single micro-batch, it
    is the whole batch, and any op may depend on the whole batch. Raises
    WholeBatchNeeded if an op on one of several micro-batches depends on a value of the
    whole batch.
    """
    ops = [op for op in function.body.block.ops if not isinstance(op, ReturnOp)]
    # Values of a single micro-batch that is not split: the same for all of them.
    single: set[SSAValue] = set()
    wanted: set[SSAValue] = set()
    if micro_batches == 1:
        wanted = _wanted(ops)
        if not wanted or _is_one_sample(function):
            single = _inputs(function)
            wanted = {v for op in ops for v in (*op.operands, *op.results)}
    kinds: dict[Operation, Kind] = {}
    # Values that are available after all micro-batches.
    late = set(single)
    # Values that are the same for all micro-batches, but that each of them computes:
    # results of called functions that depend on weights alone. They are not available
    # before.
    again: set[SSAValue] = set()
    for op in ops:
        if any(r in wanted for r in op.results) and (
            gathers_micro_batches(op) or any(v in single for v in op.operands)
        ):
            kinds[op] = Kind.EACH
            single.update(op.results)
            late.update(op.results)
            continue
        kinds[op] = _kind(op, late, micro_batches)
        if kinds[op] is Kind.AFTER:
            late.update(op.results)
        elif kinds[op] is Kind.EACH or any(v in again for v in op.operands):
            again.update(r for r in op.results if over_time(r) is REPLICATED)
            if kinds[op] is Kind.DIVIDE:
                kinds[op] = Kind.EACH
    needed: set[SSAValue] = set()
    for op, kind in reversed(kinds.items()):
        if kind in (Kind.EACH, Kind.DIVIDE) or any(r in needed for r in op.results):
            needed.update(op.operands)
            if kind is Kind.BEFORE and any(v in again for v in op.operands):
                kinds[op] = Kind.EACH
        elif kind is Kind.BEFORE:
            kinds[op] = Kind.AFTER
    return kinds


def _kind(op: Operation, late: set[SSAValue], micro_batches: int) -> Kind:
    before = {type(over_time(v)) for v in op.operands}
    after = {type(over_time(v)) for v in op.results}
    depends = [v for v in op.operands if v in late]
    # A single micro-batch is complete as soon as it is computed.
    if gathers_micro_batches(op) and (not depends or micro_batches == 1):
        # Whole inputs are available from the beginning.
        return Kind.BEFORE if isinstance(op.operands[0], BlockArgument) else Kind.AFTER
    if depends and SplitPlacement not in before | after:
        return Kind.AFTER
    if depends:
        raise _needs_whole_batch(op, depends[0])
    if isinstance(op, ReshardOp) and before == {ReplicatedPlacement} != after:
        return Kind.DIVIDE
    if before | after <= {ReplicatedPlacement}:
        return Kind.BEFORE
    if isinstance(op, ReshardOp) and before != after and micro_batches > 1:
        raise _needs_whole_batch(op, op.source)
    return Kind.EACH


def _wanted(ops: Iterable[Operation]) -> set[SSAValue]:
    """
    Returns the operands and results of ops that work on values split into
    micro-batches, and of all ops on which these ops depend.
    """
    wanted: set[SSAValue] = set()
    for op in reversed(list(ops)):
        if works_on_parts(op) or any(r in wanted for r in op.results):
            wanted.update(op.operands)
            wanted.update(op.results)
    return wanted


def _is_one_sample(function: FuncOp) -> bool:
    """Whether a dimension that is split into micro-batches has size 1."""
    args = function.body.block.args
    placed = [(arg, over_time(arg)) for arg in args]
    return any(
        isinstance(p, SplitPlacement) and shape_of(a.type)[p.dim] == 1
        for a, p in placed
    )


def _inputs(function: FuncOp) -> set[SSAValue]:
    """
    Returns the inputs and labels of a program whose batch is a single sample. Raises
    DistIRError if the program is a training step.
    """
    if updated_arguments(function):
        raise DistIRError(
            "pipeline: the batch is a single sample, which nothing can be split of, so "
            "that gradients cannot be told from updates; choose a batch of 2 or more"
        )
    roles = argument_roles(function)
    args = function.body.block.args
    return {a for a, r in zip(args, roles, strict=True) if r in ("input", "label")}


def _needs_whole_batch(op: Operation, value: SSAValue) -> WholeBatchNeeded:
    users = [use.operation for result in op.results for use in result.uses]
    shown = users[0] if isinstance(op, ReshardOp) and users else op
    return WholeBatchNeeded(
        f"pipeline: {describe(shown)} works on micro-batches, but needs what "
        f"{describe(_origin(op, value))} makes of the whole batch; "
        f"{whole_batch_remedy(op)}"
    )


def whole_batch_remedy(op: Operation) -> str:
    """
    Returns advice for the error that `op` depends on a value of the whole batch. The
    advice names only the options of training steps that apply to the program of `op`.
    """
    present = {type(each) for each in op.get_toplevel_object().walk()}
    options: list[str] = []
    if BatchNormVarianceOp in present:
        options.append("--batch-norm-micro-batches for batch normalisation")
    found = "use one micro-batch (k=1)"
    if options:
        found += f", or, when the training step is made, {' and '.join(options)}"
    if any(map(_numbers_places, op.get_toplevel_object().walk())):
        found += (
            ", or, when the module is imported, equal_features (--equal-features), if each "
            "sample has as many features of images or sounds"
        )
    return found


def _numbers_places(op: Operation) -> bool:
    """
    Whether `op` counts the true positions of a mask, as in models that scatter features
    to these positions.
    """
    if op.name != "onnx.CumSum":
        return False
    mask = op.operands[0].owner
    return (
        isinstance(mask, Operation)
        and mask.name == "onnx.Cast"
        and element_type(mask.operands[0]) == i1
    )


def _origin(user: Operation, value: SSAValue) -> Operation:
    """
    Returns the op that combines micro-batches and on whose result `value` depends. If
    there is no such op, returns `user`, an op that uses `value`.
    """
    pending = [(user, value)]
    seen: set[SSAValue] = set()
    while pending:
        user, value = pending.pop()
        owner = value.owner
        if value in seen or not isinstance(owner, Operation):
            continue
        seen.add(value)
        if any(isinstance(over_time(v), SplitPlacement) for v in owner.operands):
            return user if isinstance(owner, ReshardOp) else owner
        pending += [(owner, v) for v in owner.operands]
    return user
