"""
`batch-statistics`: writes training-mode batch normalisation as statistics and their use.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ModuleOp,
    StringAttr,
    UnitAttr,
)
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import NAME, ROLE, SCOPE, UPDATES
from distir.dialects.onnx_op import OnnxOp
from distir.errors import DistIRError
from distir.gradients.reverse import STATISTIC
from distir.gradients.rule import GradientBuilder, shape
from distir.gradients.rules.batch_normalization import moments
from distir.passes.options import DistIRPass
from distir.program import (
    argument_attributes,
    argument_names,
    describe,
    entry_function,
    reachable_functions,
    replace_call,
    result_attributes,
    return_op,
    set_argument_attributes,
    set_results,
    text_attribute,
)


def write_out(op: OnnxOp) -> list[SSAValue]:
    """
    Writes a batch normalisation in training mode as the mean and variance of the batch and
    a batch normalisation with these. If the program does not use its new running statistics
    itself, returns what PyTorch makes of them: it divides the sum of squares by one less
    than the number of values. Raises DistIRError.
    """
    x, scale, bias, *running = op.operands
    build = GradientBuilder(
        lambda new: Rewriter.insert_op(new, InsertPoint.before(op)),
        op.attributes.get(SCOPE),
    )
    statistics = moments(x, running[0], build)
    epsilon, momentum = op.attribute("epsilon"), op.attribute("momentum")
    normal = build.onnx(
        "BatchNormalization", x, scale, bias, *statistics, epsilon=epsilon
    )
    normal.name_hint = op.results[0].name_hint
    op.results[0].replace_all_uses_with(normal)
    count = prod(shape(x)) // shape(x)[1]
    own = any(result.uses for result in op.results[1:])
    if not own and count < 2:
        raise DistIRError(
            f"{describe(op)} has one value per channel in a step, which has no variance; "
            f"train with a larger batch"
        )
    new: list[SSAValue] = []
    corrections = (1.0, 1.0 if own else count / (count - 1))
    for i, (before, now) in enumerate(zip(running, statistics, strict=True), start=1):
        if own and (i >= len(op.results) or not op.results[i].uses):
            continue
        share = build.scalar((1 - momentum) * corrections[i - 1], now)
        kept = build.onnx("Mul", before, build.scalar(momentum, before))
        value = build.onnx("Add", kept, build.onnx("Mul", now, share))
        if own:
            value.name_hint = op.results[i].name_hint
            op.results[i].replace_all_uses_with(value)
        else:
            new.append(value)
    op.detach()
    op.erase()
    return new


class RunningStatistics:
    """
    Returns the new running statistics of a function's batch normalisations to its callers,
    as further results, up to the entry, which updates its arguments with them.
    """

    def __init__(self, module: ModuleOp):
        self.module = module
        self.updated: dict[str, list[int]] = {}
        """The arguments of a function that its last results replace."""

    def write_out(self, function: FuncOp) -> None:
        """Writes out the batch normalisations of a function, after those it calls."""
        current: dict[SSAValue, SSAValue] = {}
        for op in list(function.body.block.ops):
            if isinstance(op, CallOp):
                self._update_by_call(op, current)
            elif (
                isinstance(op, OnnxOp)
                and op.name == "onnx.BatchNormalization"
                and op.attribute("training_mode")
            ):
                # A layer that runs twice in a step updates its statistics twice.
                running = list(op.operands[3:])
                for i, value in enumerate(running, start=3):
                    op.operands[i] = current.get(value, value)
                current |= zip(running, write_out(op), strict=False)
        args = function.body.block.args
        found = {arg.index: current[arg] for arg in args if arg in current}
        if function is entry_function(self.module):
            self._update_arguments(function, found)
        elif found:
            self.updated[function.sym_name.data] = list(found)
            _add_results(
                function, [(v, {STATISTIC: UnitAttr()}) for v in found.values()]
            )

    def _update_by_call(self, call: CallOp, current: dict[SSAValue, SSAValue]) -> None:
        name = call.callee.string_value()
        updated = self.updated.get(name)
        if updated is None:
            return
        running = [call.operands[i] for i in updated]
        operands = list(call.operands)
        for i, value in zip(updated, running, strict=True):
            operands[i] = current.get(value, value)
        types = [*call.result_types, *(v.type for v in running)]
        new = replace_call(call, name, operands, types)
        current |= zip(running, new.results[len(types) - len(running) :], strict=True)

    def _update_arguments(self, entry: FuncOp, found: dict[int, SSAValue]) -> None:
        attributes, names = argument_attributes(entry), argument_names(entry)
        results: list[tuple[SSAValue, dict[str, Attribute]]] = []
        for index, value in found.items():
            if text_attribute(attributes[index], ROLE) in (None, "input", "label"):
                continue
            attributes[index][ROLE] = StringAttr("state")
            name = StringAttr(names[index])
            results.append((value, {NAME: name, UPDATES: name}))
        set_argument_attributes(entry, attributes)
        if results:
            _add_results(entry, results)


def _add_results(
    function: FuncOp, results: list[tuple[SSAValue, dict[str, Attribute]]]
) -> None:
    """Makes a function return further results."""
    returned, attributes = return_op(function), result_attributes(function)
    values = [*returned.operands, *(value for value, _ in results)]
    set_results(function, values, [*attributes, *(own for _, own in results)])


@dataclass(frozen=True)
class BatchStatisticsPass(DistIRPass):
    """
    Writes batch normalisation in training mode as the mean and variance of the batch and
    batch normalisation with them. Both are sums over the batch: it can then be split,
    and every device uses the statistics of the whole batch.

    Running statistics that are weights of the program become states, which results
    update as PyTorch does, unless the program uses the new ones itself.
    """

    name = "batch-statistics"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        statistics = RunningStatistics(op)
        for function in reachable_functions(op):
            statistics.write_out(function)
