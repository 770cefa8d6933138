"""
Turns annotated layouts into layouts in types, and inserts the communication that the
layouts need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, TensorType, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from distir.dialects.constants import constant_of, draws_random_numbers
from distir.dialects.dist import (
    LAYOUT,
    OPERAND_LAYOUTS,
    RESULT_LAYOUTS,
    ConstrainOp,
    Layout,
    LayoutAttr,
    ReshardOp,
    Shard,
    layout_of,
    with_layout,
)
from distir.dialects.dist_attributes import (
    FIXED,
    FIXED_BY,
    RAGGED,
    REDUCE_LATE,
    RESHARD_EARLY,
    SCOPE,
    SEPARATE_COPIES,
)
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.program import (
    argument_attributes,
    argument_roles,
    describe,
    entry_function,
    made_with,
    reachable_functions,
    set_argument_attributes,
)
from distir.program.functions import erase_unreachable, separate_others
from distir.sharding.mesh import TIME_AXIS, Mesh, meshes
from distir.sharding.placement import REPLICATED, placement_in
from distir.sharding.prices import local_bytes
from distir.sharding.reshard import plan_reshard, reshard_bytes
from distir.sharding.rule import (
    factor_shards,
    inference_of,
    is_made_by_users,
    layout_for,
    layouts_read,
    rule_for,
)
from distir.transforms.expert_shards import rows_and_taken
from distir.transforms.pipelines.over_time import over_time, without_time
from distir.transforms.resharding import lower_reshards

Price = Callable[[Attribute, Layout, Layout], float]
"""
A function that returns the price of a reshard, in any unit. Its arguments are the
sequential type of the value and the layouts before and after.
"""

_REQUESTS = (OPERAND_LAYOUTS, RESULT_LAYOUTS, RESHARD_EARLY, REDUCE_LATE)
"""The attributes that are removed once they have been followed."""


def _layouts(op: Operation, name: str, count: int) -> list[Layout]:
    if count == 0:
        return []
    attr = op.attributes.get(name)
    if not isinstance(attr, ArrayAttr) or len(attr.data) != count:
        raise DistIRError(
            f"{describe(op)} carries no {name} for its {count} values; run "
            f"propagate-sharding before partition"
        )
    found = [a.data for a in attr.data if isinstance(a, LayoutAttr)]
    if len(found) != count:
        raise DistIRError(f"{describe(op)}: {name} must hold #dist.layout attributes")
    return found


def _placed(type_: Attribute, layout: Layout) -> Attribute:
    return with_layout(type_, layout) if isinstance(type_, TensorType) else type_


class Partitioner:
    """
    Rebuilds one function with layouts in its types. With `separate`, each use reshards
    a value from the value's stored layout to the layout that the use needs. Otherwise
    the first use makes a copy for all uses with the same layout. The copy lives until
    the last of these uses, and copies in further layouts may be made from it.

    With `separate`, an op that takes a value twice in one layout counts as one use.
    Each argument of a call and each result of the function is a separate use, because
    its layout is chosen separately. The search for layouts counts uses in the same way.

    A copy is made from the existing copy with the lowest `price`. Without `price`, it
    is made from the copy that needs the fewest bytes moved. With the prices of the
    search for layouts, no copy costs more than the search promised.
    """

    def __init__(
        self,
        function: FuncOp,
        known: Mapping[str, Mesh],
        is_entry: bool,
        separate: bool,
        price: Price | None = None,
    ):
        self.separate = separate
        self.price = price
        self.function = function
        self.known = known
        self.block = Block()
        # The copies of each value by layout, for later uses.
        self.versions: dict[SSAValue, dict[Layout, SSAValue]] = {}
        self.roles = argument_roles(function)
        self.is_entry = is_entry
        # Ops that were made once more in another layout, and the new ones. Those that
        # nothing uses in the end are erased.
        self.made_again: dict[Operation, None] = {}
        self.made_in: dict[tuple[SSAValue, Layout], SSAValue | None] = {}

    def run(self) -> None:
        """Replaces the function's body, type and argument attributes."""
        function = self.function
        attributes = argument_attributes(function)
        layouts: list[Layout] = []
        args = function.body.block.args
        for arg, entry in zip(args, attributes, strict=True):
            request = entry.pop(LAYOUT, None)
            for asked in (FIXED, FIXED_BY):
                entry.pop(asked, None)
            if not isinstance(request, LayoutAttr):
                raise DistIRError(
                    f"@{function.sym_name.data}: argument {arg.index} has no "
                    f"dist.layout; run propagate-sharding before partition"
                )
            layouts.append(request.data)
        types = [_placed(a.type, own) for a, own in zip(args, layouts, strict=True)]
        self.block = Block(arg_types=types)
        for arg, new, layout in zip(args, self.block.args, layouts, strict=True):
            new.name_hint = arg.name_hint
            self.versions[arg] = {layout: new}
        for op in function.body.block.ops:
            self._op(op)
        for made in reversed(self.made_again):
            if not any(result.uses for result in made.results):
                made.detach()
                made.erase()
        set_argument_attributes(function, attributes)
        function.detach_region(function.body).drop_all_references()
        function.add_region(Region(self.block))
        function.update_function_type()

    def _op(self, op: Operation) -> None:
        wanted = _layouts(op, OPERAND_LAYOUTS, len(op.operands))
        given = _layouts(op, RESULT_LAYOUTS, len(op.results))
        if type(op) is ConstrainOp and RAGGED in op.attributes:
            self._bring_rows(op, wanted[0])
        operands = self._operands(op, wanted)
        if type(op) is ConstrainOp:
            # A constant is whole on every device anyway, and no collective should come
            # between it and the ops whose rules ask for its value.
            known = constant_of(op.source) is not None
            versions = self.versions[op.source] if known else {given[0]: operands[0]}
            self.versions[op.result] = versions
            return
        types = [
            _placed(r.type, layout) for r, layout in zip(op.results, given, strict=True)
        ]
        new = made_with(op, operands, types)
        for request in _REQUESTS:
            new.attributes.pop(request, None)
        self.block.add_op(new)
        for old, result, layout in zip(op.results, new.results, given, strict=True):
            result.name_hint = old.name_hint
            self.versions[old] = {layout: result}

    def _operands(self, op: Operation, wanted: Sequence[Layout]) -> list[SSAValue]:
        """Returns the operands of `op` in the layouts `wanted`."""
        is_one_use = type(op) not in (CallOp, ReturnOp)
        made: dict[tuple[SSAValue, Layout], SSAValue] = {}
        operands: list[SSAValue] = []
        for i, (value, layout) in enumerate(zip(op.operands, wanted, strict=True)):
            operand = self._unread(i, op, wanted)
            if operand is None and is_one_use:
                operand = made.get((value, layout))
            if operand is None:
                operand = made[value, layout] = self._version(value, layout, op)
            operands.append(operand)
        return operands

    def _version(self, value: SSAValue, layout: Layout, user: Operation) -> SSAValue:
        """
        Returns `value` in `layout`, made from its cheapest existing copy if necessary.
        """
        versions = self.versions[value]
        if layout in versions or not isinstance(value.type, TensorType):
            return versions.get(layout) or next(iter(versions.values()))
        source = next(iter(versions.values()))
        if len(versions) > 1:
            # A value made of all micro-batches comes too late for one of them.
            time = placement_in(layout, TIME_AXIS)
            alike = [v for v in versions.values() if over_time(v) == time]
            source = min(
                alike or versions.values(),
                key=lambda v: self._price(value.type, v, layout),
            )
        # Separate copies are those that a search has priced as reshards.
        is_free = isinstance(source.owner, Operation) and is_made_by_users(source.owner)
        made = self._made(source, layout) if is_free or not self.separate else None
        if made is not None:
            if not self.separate:
                versions[layout] = made
            return made
        reshard = ReshardOp(source, with_layout(value.type, layout))
        if SCOPE in user.attributes:
            reshard.attributes[SCOPE] = user.attributes[SCOPE]
        if RESHARD_EARLY in user.attributes and isinstance(source.owner, Operation):
            reshard.attributes[RESHARD_EARLY] = UnitAttr()
            self.block.insert_op_after(reshard, source.owner)
        else:
            self.block.add_op(reshard)
        if not self.separate and not self._is_gathered_for_each_use(value):
            versions[layout] = reshard.result
        return reshard.result

    def _made(self, source: SSAValue, layout: Layout) -> SSAValue | None:
        """
        Returns `source` in `layout`, computed by a copy of its op without
        communication. This is possible for ops that make their result in any layout,
        such as constants with equal elements and `tensor.empty`, and for ops such as
        fills and broadcasts if their operands can be made in this way. Returns None for
        all other values.
        """
        # Failures too: in a grid of ops, paths to one value are exponentially many.
        if (source, layout) not in self.made_in:
            self.made_in[source, layout] = self._made_anew(source, layout)
        return self.made_in[source, layout]

    def _made_anew(self, source: SSAValue, layout: Layout) -> SSAValue | None:
        """
        Adds a copy of the op of `source` that computes `source` in `layout`, and
        returns its result. Returns None if this is not possible without communication.
        """
        op = source.owner
        if not isinstance(op, Operation) or len(op.results) != 1 or layout.partial:
            return None
        if isinstance(op, CallOp | ReshardOp):
            # A call has the layouts of its function. After a reshard, each device would
            # do the work that the reshard divides.
            return None
        tensors = [v for v in op.operands if isinstance(v.type, TensorType)]
        # First, because making a rule is slow, and most ops have other operands.
        if not all(self._may_be_made(v, layout) for v in tensors):
            return None
        operands = self._operands_for(op, layout)
        type_ = source.type
        if operands is None or not isinstance(type_, TensorType):
            return None
        new = made_with(op, operands, [with_layout(type_, layout)])
        self.made_again |= {op: None, new: None}
        self.block.insert_op_after(new, op)
        new.results[0].name_hint = source.name_hint
        return new.results[0]

    def _may_be_made(self, value: SSAValue, layout: Layout) -> bool:
        """
        Whether a copy of an op may have the operand `value` in `layout`: an op computes
        `value`, or `value` is not split and has no dimension that `layout` splits.
        """
        if isinstance(value.owner, Operation):
            return not draws_random_numbers(value.owner)
        return len(shape_of(value)) < len(layout.dims)

    def _operands_for(self, op: Operation, layout: Layout) -> list[SSAValue] | None:
        """
        Returns operands from which `op` computes its result in `layout`. Each operand
        keeps its layout or is made in a new layout without communication. Returns None
        if there are no such operands, or if a copy of the op would cost work or draw
        different random numbers.
        """
        rule, mesh = rule_for(op), self.known[layout.mesh]
        if rule.is_made_anywhere:
            return list(op.operands)
        if rule.flops or draws_random_numbers(op):
            return None  # making it again would cost work, or other numbers
        assignment: dict[int, tuple[Shard, ...]] = {}
        for dim, shards in zip(
            rule.results[0], layout.full_dims(len(rule.results[0])), strict=True
        ):
            split = factor_shards(shards, dim, rule, mesh)
            if split is None:
                return None
            assignment |= split
        wanted = [
            layout_for(dims, rule, assignment, mesh) if layout_of(v) else None
            for v, dims in zip(op.operands, rule.operands, strict=True)
        ]
        found = inference_of(rule, [own or Layout(mesh.name) for own in wanted], mesh)
        if isinstance(found, str) or found.results != (layout,):
            return None
        operands = [
            value if own is None or layout_of(value) == own else self._made(value, own)
            for value, own in zip(op.operands, wanted, strict=True)
        ]
        return None if None in operands else [v for v in operands if v is not None]

    def _bring_rows(self, op: ConstrainOp, layout: Layout) -> None:
        """
        Makes a copy of the rows of experts in `layout` if this takes exactly one
        all-to-all. The all-to-all also gets the values that tell which rows are empty.
        """
        versions, routed = self.versions[op.source], rows_and_taken(op)
        if layout in versions or routed is None:
            return
        before, source = next(iter(versions.items()))
        shape = shape_of(source)
        steps = plan_reshard(before, layout, shape, self.known[layout.mesh])
        if [step.kind for step in steps] != ["all_to_all"]:
            return
        experts, taken = routed
        rows = [
            self._version(experts, Layout(side.mesh, side.full_dims(4)[:3]), op)
            for side in (before, layout)
        ]
        type_ = source.type
        assert isinstance(type_, TensorType)
        reshard = ReshardOp(source, with_layout(type_, layout), rows, taken)
        if SCOPE in op.attributes:
            reshard.attributes[SCOPE] = op.attributes[SCOPE]
        self.block.add_op(reshard)
        versions[layout] = reshard.result

    def _unread(
        self, index: int, op: Operation, wanted: Sequence[Layout]
    ) -> SSAValue | None:
        """
        Returns operand `index` of `op` in its stored layout, without gathering it, if
        the operand is a parameter whose values `op` does not read. Taking the parameter
        in its stored layout must also leave `op` split as in `wanted`. Returns None in
        all other cases.
        """
        value = op.operands[index]
        versions = self.versions[value]
        if wanted[index] in versions or not self._is_gathered_for_each_use(value):
            return None
        rule = rule_for(op)
        if index not in rule.unread:
            return None
        layout, stored = next(iter(versions.items()))
        given = [*wanted[:index], layout, *wanted[index + 1 :]]
        return stored if layouts_read(rule, given) == list(wanted) else None

    def _is_gathered_for_each_use(self, value: SSAValue) -> bool:
        """
        Whether each use of `value` gathers it separately. This is so in the entry
        function for parameters of which a device stores only a part (ZeRO stage 3): the
        gathered parameter must not stay in memory from the forward to the backward
        pass. In a called function, such as one layer's backward pass, all uses share
        one gathered parameter, because each gather costs communication.
        """
        return (
            self.is_entry
            and isinstance(value, BlockArgument)
            and self.roles[value.index] == "parameter"
            and any(layout_of(v).split_axes for v in self.versions[value].values())  # type: ignore[union-attr]
        )

    def _price(self, type_: Attribute, source: SSAValue, after: Layout) -> float:
        """
        Returns the price of making a copy with the layout `after` from the copy
        `source`.
        """
        before = layout_of(source)
        assert before is not None
        if self.price is not None:
            return self.price(type_, before, after)
        return self._bytes_moved(source, before, after)

    def _bytes_moved(self, source: SSAValue, before: Layout, after: Layout) -> float:
        """
        Returns the number of bytes that a reshard moves for all micro-batches. A
        reshard that combines micro-batches costs as much as a reshard of the combined
        value, so that the price does not depend on the number of micro-batches.
        """
        type_ = source.type
        assert isinstance(type_, TensorType)
        mesh = self.known[before.mesh]
        time, later = placement_in(before, TIME_AXIS), placement_in(after, TIME_AXIS)
        together = time not in (REPLICATED, later)
        moved = reshard_bytes(
            without_time(before),
            without_time(after),
            type_.get_shape(),
            mesh,
            bytes_per_element(type_.element_type),
        )
        return moved + (local_bytes(source, after, mesh) if together else 0.0)


def _forget_requests(function: FuncOp) -> None:
    """Removes the annotations that request layouts from a function."""
    arguments = argument_attributes(function)
    for own in arguments:
        for name in (LAYOUT, FIXED, FIXED_BY):
            own.pop(name, None)
    set_argument_attributes(function, arguments)
    for op in function.body.block.ops:
        for name in _REQUESTS:
            op.attributes.pop(name, None)


def partition(
    module: ModuleOp, *, lower: bool = False, price: Price | None = None
) -> None:
    """
    Moves annotated layouts into types, and inserts `dist.reshard` where layouts differ.
    If the module has `dist.separate_copies`, each use gets a separate reshard.
    Otherwise all uses with the same layout share one reshard. `price` returns the price
    of a reshard; each new copy is made from the existing copy with the lowest price.
    With `lower`, reshards become collectives at once. Raises DistIRError if a layout
    does not suit the value that has it.
    """
    separate = module.attributes.pop(SEPARATE_COPIES, None) is not None
    known = meshes(module)
    for copy in separate_others(module):
        _forget_requests(copy)
    erase_unreachable(module)
    entry = entry_function(module)
    for function in reachable_functions(module):
        Partitioner(function, known, function is entry, separate, price).run()
    if lower:
        lower_reshards(module)
