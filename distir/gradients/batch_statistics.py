"""
Rewrites batch normalisation in training mode as ops that compute the statistics of the
batch and ops that normalise with these statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import NAME, ROLE, SCOPE, UPDATES
from distir.dialects.onnx_ops.attributes import decimal
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.batch_normalization import GhostBatchNormOp
from distir.errors import DistIRError
from distir.gradients.batch_parts import BatchParts
from distir.gradients.reverse import STATISTIC
from distir.gradients.rule import GradientBuilder, shape
from distir.gradients.rules.batch_normalization import moments
from distir.program import (
    argument_attributes,
    argument_names,
    describe,
    entry_function,
    replace_call,
    result_attributes,
    return_op,
    set_argument_attributes,
    set_results,
)


@dataclass(frozen=True)
class Update:
    """
    The change of a running statistic in a step: its new value is `left` times the old
    value plus `moved`.
    """

    left: float
    moved: SSAValue

    def applied(self, before: SSAValue, build: GradientBuilder) -> SSAValue:
        """
        Returns the value of the statistic after the step, given the value `before` the
        step.
        """
        kept = build.onnx("Mul", before, build.scalar(self.left, before))
        return build.onnx("Add", kept, self.moved)

    def followed_by(self, later: Update, build: GradientBuilder) -> Update:
        """
        Returns one update with the same effect as this update followed by the update
        `later`.
        """
        return Update(self.left * later.left, later.applied(self.moved, build))


def _builder_at(place: InsertPoint, scope: Attribute | None) -> GradientBuilder:
    return GradientBuilder(lambda new: Rewriter.insert_op(new, place), scope)


def write_out(op: OnnxOp, parts: BatchParts) -> list[Update]:
    """
    Replaces a batch normalisation in training mode by ops that compute the batch's mean
    and variance, and a batch normalisation with this mean and variance. With several
    parts, the replacement is `train.ghost_batch_norm`.

    Returns the updates of the running statistics. As in PyTorch, the running variance
    divides by the number of values minus one. Returns an empty list if the program uses
    the new running statistics, which are then computed in the program. Raises
    DistIRError if the batch does not divide into the parts, or if a channel has only
    one value.
    """
    sizes = shape(op.operands[0])
    own = any(result.uses for result in op.results[1:])
    if sizes[0] % parts.count or (own and parts.count > 1):
        reason = "the program uses its new running statistics itself"
        if sizes[0] % parts.count:
            reason = f"its {sizes[0]} samples are no multiple of that"
        raise DistIRError(
            f"{describe(op)} cannot have statistics of {parts.count} parts of the batch: "
            f"{reason}"
        )
    count = prod(sizes) // sizes[1] // parts.count
    if not own and count < 2:
        raise DistIRError(
            f"{describe(op)} has one value per channel in a step, which has no variance; "
            f"train with a larger batch"
        )
    build = _builder_at(InsertPoint.before(op), op.attributes.get(SCOPE))
    if parts.count > 1:
        found = _of_parts(op, count, parts, build)
    else:
        found = _of_batch(op, count, build)
    op.detach()
    op.erase()
    return found


def _of_batch(op: OnnxOp, count: int, build: GradientBuilder) -> list[Update]:
    """
    Replaces a batch normalisation in training mode by a batch normalisation with the
    mean and variance of the whole batch. Returns the updates of the running statistics.
    """
    x, scale, bias, *running = op.operands
    own = any(result.uses for result in op.results[1:])
    statistics = moments(x, running[0], build)
    epsilon, momentum = op.attribute("epsilon"), decimal(op.attribute("momentum"))
    normal = build.onnx(
        "BatchNormalization", x, scale, bias, *statistics, epsilon=epsilon
    )
    normal.name_hint = op.results[0].name_hint
    op.results[0].replace_all_uses_with(normal)
    found: list[Update] = []
    corrections = (1.0, 1.0 if own else count / (count - 1))
    for i, (before, now) in enumerate(zip(running, statistics, strict=True), start=1):
        if own and (i >= len(op.results) or not op.results[i].uses):
            continue
        share = build.scalar((1 - momentum) * corrections[i - 1], now)
        update = Update(momentum, build.onnx("Mul", now, share))
        if own:
            value = update.applied(before, build)
            value.name_hint = op.results[i].name_hint
            op.results[i].replace_all_uses_with(value)
        else:
            found.append(update)
    return found


def _of_parts(
    op: OnnxOp, count: int, parts: BatchParts, build: GradientBuilder
) -> list[Update]:
    """
    Replaces a batch normalisation by an op that normalises each part of the batch with
    the part's own statistics. Returns the updates of the running statistics on
    PyTorch's first device, where each micro-batch moves the statistics by the momentum.
    """
    x, scale, bias, *running = op.operands
    epsilon, momentum = op.attribute("epsilon"), decimal(op.attribute("momentum"))
    norm = GhostBatchNormOp(x, scale, bias, groups=parts.count, epsilon=epsilon)
    build.add(norm)
    norm.y.name_hint = op.results[0].name_hint
    op.results[0].replace_all_uses_with(norm.y)
    root = build.onnx("Reciprocal", norm.inverse)
    shifted = build.onnx("Mul", root, root)
    variance = build.onnx("Sub", shifted, build.scalar(epsilon, shifted))
    dtype = numpy_dtype(element_type(norm.mean))
    shares = np.zeros((parts.micro_batches, parts.devices))
    later = np.arange(parts.micro_batches)[::-1]
    shares[:, 0] = (1 - momentum) * momentum**later
    found: list[Update] = []
    corrections = (1.0, count / (count - 1))
    for before, now, correction in zip(
        running, (norm.mean, variance), corrections, strict=True
    ):
        share = (shares * correction).reshape(-1, 1).astype(dtype)
        moved = build.onnx("Mul", now, build.constant(share))
        moved = build.onnx("ReduceSum", moved, build.integers([0]), keepdims=0)
        if element_type(moved) != element_type(before):
            moved = build.onnx("CastLike", moved, before)
        found.append(Update(momentum**parts.micro_batches, moved))
    return found


class RunningStatistics:
    """
    Passes the updates of running statistics from functions to their callers, as
    additional results, up to the entry function. The entry function applies the updates
    to its arguments.
    """

    def __init__(self, module: ModuleOp, parts: BatchParts):
        self.module, self.parts = module, parts
        self.updated: dict[str, dict[int, float]] = {}
        """
        For each function, by name: the indices of the arguments that its last results
        update, each with the factor of the old value.
        """

    def write_out(self, function: FuncOp) -> None:
        """
        Rewrites the batch normalisations of `function`. The functions that `function`
        calls must be rewritten before.
        """
        current: dict[SSAValue, Update] = {}
        for op in list(function.body.block.ops):
            after = op.next_op
            if isinstance(op, CallOp):
                updates = self._of_call(op)
            elif (
                isinstance(op, OnnxOp)
                and op.name == "onnx.BatchNormalization"
                and op.attribute("training_mode")
            ):
                running = list(op.operands[3:])
                updates = zip(running, write_out(op, self.parts), strict=False)
            else:
                continue
            assert after is not None
            place, scope = InsertPoint.before(after), op.attributes.get(SCOPE)
            build = _builder_at(place, scope)
            # A layer that runs twice in a step updates its statistics twice.
            for value, update in updates:
                before = current.get(value)
                current[value] = before.followed_by(update, build) if before else update
        args = function.body.block.args
        found = {arg.index: current[arg] for arg in args if arg in current}
        if function is entry_function(self.module):
            self._update_arguments(function, found)
        elif found:
            name = function.sym_name.data
            self.updated[name] = {index: u.left for index, u in found.items()}
            _add_results(
                function, [(u.moved, {STATISTIC: UnitAttr()}) for u in found.values()]
            )

    def _of_call(self, call: CallOp) -> list[tuple[SSAValue, Update]]:
        """
        Adds to `call` the results that its function now returns for running statistics.
        Returns the operands that these results update, each with its update.
        """
        name = call.callee.string_value()
        updated = self.updated.get(name)
        if updated is None:
            return []
        running = [call.operands[i] for i in updated]
        types = [*call.result_types, *(v.type for v in running)]
        new = replace_call(call, name, list(call.operands), types)
        moved = new.results[len(types) - len(running) :]
        updates = map(Update, updated.values(), moved)
        return list(zip(running, updates, strict=True))

    def _update_arguments(self, entry: FuncOp, found: dict[int, Update]) -> None:
        attributes, names = argument_attributes(entry), argument_names(entry)
        results: list[tuple[SSAValue, dict[str, Attribute]]] = []
        for index, update in found.items():
            if ROLE.of(attributes[index]) in (None, "input", "label"):
                continue
            attributes[index][ROLE] = ROLE.attr("state")
            owner = update.moved.owner
            assert isinstance(owner, Operation) and owner.next_op is not None
            place, scope = (
                InsertPoint.before(owner.next_op),
                owner.attributes.get(SCOPE),
            )
            value = update.applied(
                entry.body.block.args[index], _builder_at(place, scope)
            )
            name = StringAttr(names[index])
            results.append((value, {NAME: name, UPDATES: name}))
        set_argument_attributes(entry, attributes)
        if results:
            _add_results(entry, results)


def _add_results(
    function: FuncOp, results: list[tuple[SSAValue, dict[str, Attribute]]]
) -> None:
    """
    Adds `results` to a function: values, each with the attributes of the new result.
    """
    returned, attributes = return_op(function), result_attributes(function)
    values = [*returned.operands, *(value for value, _ in results)]
    set_results(function, values, [*attributes, *(own for _, own in results)])
