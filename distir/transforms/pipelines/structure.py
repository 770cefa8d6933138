"""
Divides a program into ops that run once per micro-batch, ops that run before all
micro-batches, and ops that run after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import ReshardOp, layout_of, with_layout
from distir.dialects.dist_attributes import RESHARD_EARLY, SCOPE
from distir.errors import DistIRError
from distir.program import (
    ancestors,
    argument_names,
    describe,
    entry_function,
    erase_dead,
    forward_results,
    functions,
    return_op,
)
from distir.sharding.mesh import TIME_AXIS, Mesh, meshes
from distir.sharding.placement import REPLICATED, PartialPlacement, placement_in
from distir.sharding.rule import Rule
from distir.sharding.signatures import Signatures
from distir.transforms.pipelines.hoist import hoist_inputs
from distir.transforms.pipelines.kinds import Kind, classified
from distir.transforms.pipelines.over_time import (
    check_time_first,
    gathers_micro_batches,
    over_time,
    without_time,
)
from distir.transforms.pipelines.scales import scale_micro_batches


def program_mesh(module: ModuleOp) -> Mesh:
    """
    Returns the program's only mesh, whose first axis is the micro-batch axis. Raises
    DistIRError if there is no such mesh or if there are several meshes.
    """
    known = list(meshes(module).values())
    if len(known) != 1 or not known[0].axes or known[0].axes[0][0] != TIME_AXIS:
        raise DistIRError(
            f"pipeline works on a program on one device.mesh with {TIME_AXIS!r}, the "
            f"micro-batch axis, as its first axis; make one with `data-parallel{{axis="
            f"{TIME_AXIS}}}` and `propagate-sharding`, or use `distribute`"
        )
    return known[0]


class Structure:
    """
    The entry function of a program over micro-batches, with its ops classified.

    - `kinds`: the kind of each op, which tells when the op runs;
    - `forward`: the ops of kind `EACH` on which a result of the program depends that is
      not a gradient or an update, in program order;
    - `backward`: the remaining ops of kind `EACH`, in program order;
    - `gathered`: the values of kind `BEFORE` that are gathered from parts of
      parameters. Each function gathers them itself, so that a whole parameter is in
      memory no longer than its use (ZeRO stage 3);
    - `functions`: the functions of the program by name;
    - `is_for_one_count`: whether the structure depends on the exact number of
      micro-batches, and not only on whether there are several.
    """

    def __init__(self, module: ModuleOp):
        self.mesh = program_mesh(module)
        self.function: FuncOp = entry_function(module)
        self.functions: Mapping[str, FuncOp] = functions(module)
        self.ops = self.function.body.block.ops
        self._check_layouts()
        if self.micro_batches > 1:
            scale_micro_batches(module)
        _separate_time(self.ops)
        hoisted = self.micro_batches > 1 and hoist_inputs(self.function, self.mesh)
        self.is_for_one_count = self.micro_batches == 1 or hoisted
        erase_dead(self.function.body.block)
        self.kinds = classified(self.function, self.micro_batches)
        self.gathered = _gathered(self.ops, self.kinds)
        each = [op for op in self.ops if self.kinds.get(op) is Kind.EACH]
        needed = self._needed_forward()
        self.forward = [op for op in each if op in needed]
        self.backward = [op for op in each if op not in needed]
        self._signatures = Signatures()
        self._known_signatures: dict[Operation, int] = {}
        # The keys are ids of values, which the function keeps alive.
        self._numbers: dict[int, int] = {}
        self._common: dict[SSAValue, bool] = {}
        self.shared: dict[int, bool] = {}
        """
        Whether all micro-batches share a value, by the value's id, for values seen so
        far.
        """

    def signature(self, op: Operation) -> int:
        """
        Returns an id for the computation of `op`. Ops with the same computation share
        the id.
        """
        found = self._known_signatures.get(op)
        if found is None:
            found = self._known_signatures[op] = self._signatures.of(op)
        return found

    def rule(self, op: Operation) -> Rule:
        """
        Returns the sharding rule of an op of the program. Ops that are alike share the
        rule.
        """
        return self._signatures.rule(op)

    def number_of(self, value: SSAValue) -> int:
        """
        Returns an id for a value of the program. Ids are used because hashing values is
        slow.
        """
        return self._numbers.setdefault(id(value), len(self._numbers))

    def is_common(self, value: SSAValue) -> bool:
        """
        Whether `value` is available before all micro-batches and is the same for all
        micro-batches.
        """
        found = self._common.get(value)
        if found is None:
            owner = value.owner
            kind = self.kinds[owner] if isinstance(owner, Operation) else Kind.BEFORE
            found = kind is Kind.BEFORE and over_time(value) is REPLICATED
            self._common[value] = found
        return found

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches into which the batch is split."""
        return self.mesh.size(TIME_AXIS)

    def _check_layouts(self) -> None:
        names = argument_names(self.function)
        for arg, name in zip(self.function.body.block.args, names, strict=True):
            check_time_first(arg, partial("argument {!r}".format, name))
        for op in self.ops:
            for result in op.results:
                check_time_first(result, partial(describe, op))

    def _needed_forward(self) -> set[Operation]:
        returned = return_op(self.function).operands
        return ancestors([returned[i] for i in forward_results(self.function)])


def _gathered(
    ops: Iterable[Operation], kinds: Mapping[Operation, Kind]
) -> frozenset[SSAValue]:
    """
    Returns the values of kind `BEFORE` that are gathered from parts of parameters.
    """
    found: set[SSAValue] = set()
    of_inputs: set[SSAValue] = set()
    for op in ops:
        if kinds.get(op) is not Kind.BEFORE:
            continue
        if gathers_micro_batches(op) or any(v in of_inputs for v in op.operands):
            of_inputs.update(op.results)
        elif isinstance(op, ReshardOp) or any(v in found for v in op.operands):
            found.update(op.results)
    return frozenset(found)


def _separate_time(ops: Iterable[Operation]) -> None:
    """
    Splits each reshard that combines micro-batches and also changes the layout on
    devices. The first new reshard combines micro-batches, and the second changes the
    layout on devices, so that gradients are summed before they are communicated.

    With `dist.reshard_early` (ZeRO 2) the order is the opposite: devices reduce and
    scatter the gradient of every micro-batch, and then sum the parts. The first new
    reshard then keeps the attribute, and scatters only over axes that split the result:
    over all other axes, parts are reduced after the micro-batches (hybrid sharding).
    """
    for op in list(ops):
        if not isinstance(op, ReshardOp):
            continue
        source, result = op.source, op.result  # finding them by name is slow
        before, after = layout_of(source), layout_of(result)
        assert before is not None and after is not None
        time = placement_in(before, TIME_AXIS)
        is_early = RESHARD_EARLY in op.attributes and isinstance(time, PartialPlacement)
        is_whole = placement_in(after, TIME_AXIS) is REPLICATED
        if not is_early:
            op.attributes.pop(RESHARD_EARLY, None)
        if is_early:
            split = after.split_axes
            still_partial = tuple(p for p in before.partial if p[0] not in split)
            between = replace(after, partial=still_partial)
        elif is_whole and time is not REPLICATED:
            between = without_time(before)
        else:
            continue
        if between in (before, after):
            continue
        assert isinstance(source.type, TensorType)
        first = ReshardOp(source, with_layout(source.type, between))
        second = ReshardOp(first.results[0], result.type)
        for new in (first, second):
            if SCOPE in op.attributes:
                new.attributes[SCOPE] = op.attributes[SCOPE]
            Rewriter.insert_op(new, InsertPoint.before(op))
        if is_early:
            first.attributes[RESHARD_EARLY] = op.attributes[RESHARD_EARLY]
        second.results[0].name_hint = result.name_hint
        result.replace_all_uses_with(second.results[0])
        Rewriter.erase_op(op)
