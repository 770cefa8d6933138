"""Which ops of a program run once per micro-batch, which before and which after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import (
    RESHARD_EARLY,
    SCOPE,
    Layout,
    ReshardOp,
    layout_of,
    with_layout,
)
from distir.errors import DistIRError
from distir.program import describe, entry_function, result_names, updated_arguments
from distir.sharding.choice import Placement, placement_in
from distir.sharding.mesh import TIME_AXIS, Mesh, meshes


class Kind(Enum):
    """
    - `EACH`: once for every micro-batch;
    - `BEFORE`: once, on what does not depend on the batch, for ops of kind `EACH`;
    - `AFTER`: once, on what the micro-batches add up or make up;
    - `DIVIDE`: takes the part of a whole value that belongs to a micro-batch.
    """

    EACH = "each"
    BEFORE = "before"
    AFTER = "after"
    DIVIDE = "divide"


def over_time(value: SSAValue) -> Placement:
    """Split over the micro-batches, partial over them, or the same for all (whole)."""
    layout = layout_of(value)
    return placement_in(layout or Layout(""), TIME_AXIS)


def program_mesh(module: ModuleOp) -> Mesh:
    """The one mesh of the program, with its axis over time. Raises DistIRError."""
    known = list(meshes(module).values())
    if len(known) != 1 or not known[0].axes or known[0].axes[0][0] != TIME_AXIS:
        raise DistIRError(
            f"pipeline works on a program on one device.mesh with {TIME_AXIS!r}, the axis "
            f"over time, as its first axis; make one with `data-parallel{{axis="
            f"{TIME_AXIS}}}` and `propagate-sharding`, or use `distribute`"
        )
    return known[0]


class Structure:
    """
    The entry function of a program that is distributed over time, taken apart.

    - `kinds`: what each op is;
    - `forward`: the ops of kind `EACH` that the program's outputs other than gradients
      and updates need; `backward`: the others, both in program order.
    """

    def __init__(self, module: ModuleOp):
        self.mesh = program_mesh(module)
        self.function: FuncOp = entry_function(module)
        self.ops = self.function.body.block.ops
        _separate_time(self.ops)
        self.kinds = self._classified()
        each = [op for op in self.ops if self.kinds.get(op) is Kind.EACH]
        needed = self._needed_forward()
        self.forward = [op for op in each if op in needed]
        self.backward = [op for op in each if op not in needed]

    @property
    def micro_batches(self) -> int:
        """Into how many parts the batch is split over time."""
        return self.mesh.size(TIME_AXIS)

    def _classified(self) -> dict[Operation, Kind]:
        kinds: dict[Operation, Kind] = {}
        late: set[SSAValue] = set()
        for op in self.ops:
            if isinstance(op, ReturnOp):
                continue
            before = [over_time(v).kind for v in op.operands]
            after = [over_time(v).kind for v in op.results]
            depends = [v for v in op.operands if v in late]
            gathers = isinstance(op, ReshardOp) and before[0] != "whole" == after[0]
            if gathers or (depends and "split" not in (*before, *after)):
                kinds[op] = Kind.AFTER
                late.update(op.results)
            elif isinstance(op, ReshardOp) and before[0] == "whole" != after[0]:
                kinds[op] = Kind.DIVIDE
            elif {*before, *after} <= {"whole"}:
                kinds[op] = Kind.BEFORE
            else:
                kinds[op] = Kind.EACH
            if depends and kinds[op] is not Kind.AFTER:
                raise DistIRError(
                    f"pipeline: {describe(op)} works on micro-batches, but needs "
                    f"%{depends[0].name_hint or '?'}, which is there only once all of "
                    f"them are done ({describe(_owner(depends[0]))} looks at the whole "
                    f"batch); use one micro-batch (-k 1), or a model without it"
                )
        needed: set[Operation] = set()
        for op in reversed(list(self.ops)):
            if kinds.get(op) is not Kind.BEFORE or op in needed:
                for value in op.operands:
                    owner = value.owner
                    if op in needed or kinds.get(op) in (Kind.EACH, Kind.DIVIDE):
                        if isinstance(owner, Operation):
                            needed.add(owner)
        for op, kind in kinds.items():
            if kind is Kind.BEFORE and op not in needed:
                kinds[op] = Kind.AFTER
        return kinds

    def _needed_forward(self) -> set[Operation]:
        updates = updated_arguments(self.function)
        names = result_names(self.function)
        last = self.function.body.block.last_op
        assert isinstance(last, ReturnOp)
        outputs = [
            value
            for i, value in enumerate(last.operands)
            if i not in updates and not names[i].endswith(".gradient")
        ]
        return _ancestors(outputs)


def _owner(value: SSAValue) -> Operation:
    assert isinstance(value.owner, Operation)
    return value.owner


def _ancestors(values: Iterable[SSAValue]) -> set[Operation]:
    found: set[Operation] = set()
    pending = list(values)
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            pending.extend(owner.operands)
    return found


def _separate_time(ops: Iterable[Operation]) -> None:
    """
    Reshards that bring micro-batches together and change the layout on devices too
    become two: first over time, then over devices, so that gradients are added up before
    they are communicated; the other way round where a reshard is to come early (ZeRO 2).
    """
    for op in list(ops):
        if not isinstance(op, ReshardOp):
            continue
        early = op.attributes.pop(RESHARD_EARLY, None) is not None
        before, after = layout_of(op.source), layout_of(op.result)
        assert before is not None and after is not None
        time = placement_in(before, TIME_AXIS)
        if time.kind == "whole" or placement_in(after, TIME_AXIS).kind != "whole":
            continue
        if early and time.kind == "partial":
            partial = (*after.partial, (TIME_AXIS, time.monoid))
            between = replace(after, partial=partial)
        else:
            between = without_time(before)
        if between in (before, after):
            continue
        assert isinstance(op.source.type, TensorType)
        first = ReshardOp(op.source, with_layout(op.source.type, between))
        second = ReshardOp(first.result, op.result.type)
        for new in (first, second):
            if SCOPE in op.attributes:
                new.attributes[SCOPE] = op.attributes[SCOPE]
            Rewriter.insert_op(new, InsertPoint.before(op))
        second.result.name_hint = op.result.name_hint
        op.result.replace_all_uses_with(second.result)
        Rewriter.erase_op(op)


def without_time(layout: Layout) -> Layout:
    """The layout on devices of all micro-batches together."""
    dims = tuple(
        tuple(s for s in shards if s.axis != TIME_AXIS) for shards in layout.dims
    )
    return replace(layout, dims=dims).without_partial([TIME_AXIS])
