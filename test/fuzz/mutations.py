"""
Single changes of a distributed program, as a faulty pass or a hand might make them.

Each mutation changes a module in place and says what it did, or gives None where the
program has nothing of the kind. Most of the outcomes are wrong programs, and some are
right ones: which of the two is for the verifier to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuzz.annotations import any_layout
from hypothesis import strategies as st
from support.random_programs import Draw
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    FunctionType,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    UnitAttr,
    f32,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects import dist
from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    PermuteOp,
    ReduceScatterOp,
    SliceOp,
)
from distir.dialects.collective_ops.per_rank import (
    CoordinateOp,
    RecvFromRankOp,
    SendToRankOp,
    WaitOp,
)
from distir.dialects.collective_ops.rooted import (
    BroadcastOp,
    GatherOp,
    ReduceOp,
    ScatterOp,
)
from distir.dialects.device import MeshOp
from distir.dialects.dist import Layout, Shard, layout_of, with_layout
from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.program import functions
from distir.sharding.mesh import meshes

Mutation = Callable[[Draw, ModuleOp], str | None]
MUTATIONS: list[Mutation] = []


def mutation(function: Mutation) -> Mutation:
    MUTATIONS.append(function)
    return function


def mutated(draw: Draw, module: ModuleOp) -> str | None:
    """Changes a module in one way; says how."""
    return draw(st.sampled_from(MUTATIONS))(draw, module)


def _ops(module: ModuleOp, *kinds: type[Operation]) -> list[Operation]:
    """The ops of all functions, only those of some kinds if any are given."""
    return [
        op
        for function in functions(module).values()
        for op in function.body.block.ops
        if (isinstance(op, kinds) if kinds else not isinstance(op, ReturnOp))
    ]


def _pick(draw: Draw, items: Sequence[Any]) -> Any:
    """
    One of the items. An index is drawn, as hypothesis prints what was drawn for a case that
    fails: an op would be printed with all that it is connected to, which does not end.
    """
    return items[draw(st.integers(0, len(items) - 1))] if items else None


def _values(module: ModuleOp) -> list[SSAValue]:
    found: list[SSAValue] = []
    for function in functions(module).values():
        found += function.body.block.args
        found += [r for op in function.body.block.ops for r in op.results]
    return found


def _retype(value: SSAValue, type_: Attribute) -> None:
    """Gives a value another type, a function's argument also in the function's type."""
    new = Rewriter.replace_value_with_new_type(value, type_)
    if not isinstance(new, BlockArgument):
        return
    function = new.block.parent_op()
    assert isinstance(function, FuncOp)
    function.properties["function_type"] = FunctionType.from_lists(
        [a.type for a in function.body.block.args],
        function.function_type.outputs.data,
    )


def _other_layout(draw: Draw, value: SSAValue, module: ModuleOp) -> Layout | None:
    """One that the tensor can have: anything, or with one axis elsewhere."""
    type_, layout = value.type, layout_of(value)
    if layout is None or not isinstance(type_, TensorType):
        return None
    known = meshes(module)
    mesh = _pick(draw, [mesh for mesh in known.values() if mesh.axes])
    if mesh is None:
        return None
    rank = type_.get_num_dims()
    if draw(st.booleans()):
        other = any_layout(draw, type_.get_shape(), mesh)
    else:
        axis = draw(st.sampled_from([a for a, _ in mesh.axes]))
        dims = tuple(
            tuple(s for s in dim if s.axis != axis) for dim in layout.full_dims(rank)
        )
        other = Layout(layout.mesh, dims, layout.without_partial([axis]).partial)
        dim = draw(st.integers(-2, rank - 1))
        if dim >= 0:
            run = draw(st.sampled_from([None, 1, 2]))
            shards = [*other.dim(dim)]
            shards.insert(draw(st.integers(0, len(shards))), Shard(axis, run))
            other = other.with_dim(dim, shards, rank)
        elif dim == -2:
            reduction = draw(st.sampled_from(["sum", "max", "min"]))
            other = Layout(other.mesh, other.dims, (*other.partial, (axis, reduction)))
    return None if other == layout else other


@mutation
def change_layout(draw: Draw, module: ModuleOp) -> str | None:
    value = _pick(draw, _values(module))
    layout = value and _other_layout(draw, value, module)
    if layout is None:
        return None
    _retype(value, with_layout(value.type, layout))
    return f"layout of {value.name_hint} to {layout}"


@mutation
def change_all_layouts(draw: Draw, module: ModuleOp) -> str | None:
    """Of a value and what a collective makes of it."""
    op = _pick(draw, _ops(module, CollectiveOp, dist.SendOp))
    if op is None:
        return None
    for value in (op.operands[0], op.results[0]):
        layout = _other_layout(draw, value, module)
        if layout is not None:
            _retype(value, with_layout(value.type, layout))
    return f"both layouts of {op.name}"


@mutation
def delete(draw: Draw, module: ModuleOp) -> str | None:
    """An op whose result can be one of its operands."""
    found = [
        (op, v)
        for op in _ops(module)
        for v in op.operands
        if len(op.results) == 1
        and op.results[0] not in op.operands  # another mutation may have made it so
        and isinstance(v.type, TensorType)
        and isinstance(op.results[0].type, TensorType)
        and v.type.shape == op.results[0].type.shape
    ]
    if not found:
        return None
    op, value = _pick(draw, found)
    op.results[0].replace_all_uses_with(value)
    Rewriter.erase_op(op)
    return f"without {op.name}"


@mutation
def delete_communication(draw: Draw, module: ModuleOp) -> str | None:
    op = _pick(draw, _ops(module, CollectiveOp, dist.SendOp))
    if op is None or op.results[0] in op.operands:
        return None
    retype = draw(st.booleans()) and op.operands[0].type
    type_ = op.results[0].type
    source = op.operands[0]
    op.results[0].replace_all_uses_with(source)
    Rewriter.erase_op(op)
    if retype:  # as if the value had always been so
        _retype(source, type_)
    return f"without {op.name}"


@mutation
def duplicate(draw: Draw, module: ModuleOp) -> str | None:
    """An op twice: behind itself where types allow, or beside itself."""
    op = _pick(draw, _ops(module))
    if op is None or not op.results:
        return None
    copy = op.clone()
    assert op.parent is not None
    op.parent.insert_op_after(copy, op)
    if draw(st.booleans()):
        op.results[0].replace_all_uses_with(copy.results[0])
    if draw(st.booleans()) and copy.operands:
        copy.operands[0] = op.results[0]
    return f"{op.name} twice"


@mutation
def move(draw: Draw, module: ModuleOp) -> str | None:
    op, other = (_pick(draw, _ops(module)) for _ in range(2))
    if op is None or op is other or op.parent is not other.parent:
        return None
    op.detach()
    Rewriter.insert_op(op, InsertPoint.before(other))
    return f"{op.name} before {other.name}"


@mutation
def swap_operands(draw: Draw, module: ModuleOp) -> str | None:
    op = _pick(draw, [o for o in _all(module) if len(o.operands) > 1])
    if op is None:
        return None
    first, second = (draw(st.integers(0, len(op.operands) - 1)) for _ in range(2))
    a, b = op.operands[first], op.operands[second]
    op.operands[first], op.operands[second] = b, a
    return f"operands {first} and {second} of {op.name}"


def _all(module: ModuleOp) -> list[Operation]:
    return [*_ops(module), *_ops(module, ReturnOp)]


@mutation
def other_operand(draw: Draw, module: ModuleOp) -> str | None:
    """Any value of the function in place of an operand, also one that comes later."""
    op = _pick(draw, [o for o in _all(module) if o.operands])
    if op is None:
        return None
    index = draw(st.integers(0, len(op.operands) - 1))
    block = op.parent
    assert block is not None
    values = [*block.args, *(r for o in block.ops for r in o.results)]
    if draw(st.integers(0, 3)):
        values = [v for v in values if v.type == op.operands[index].type]
    op.operands[index] = _pick(draw, values)
    return f"operand {index} of {op.name}"


NUMBERS = [-1, 0, 1, 2, 3, -2, 7, 2**31, 2**62]
TEXTS = ["sum", "max", "min", "d", "t", "e", "mean", "none", "", "tanh", "é", "a" * 40]
EXTRA: dict[str, Callable[[Draw], Attribute]] = {
    "group": lambda draw: DenseArrayBase.from_list(
        i64, draw(st.sampled_from([[], [0], [0, 1], [1, 0], [0, 9]]))
    ),
    "reduction": lambda draw: StringAttr(draw(st.sampled_from(TEXTS))),
    "shift": lambda draw: IntegerAttr(draw(st.sampled_from(NUMBERS)), i64),
    "root": lambda draw: IntegerAttr(draw(st.sampled_from(NUMBERS)), i64),
    "dim": lambda draw: IntegerAttr(draw(st.sampled_from(NUMBERS)), i64),
    "run": lambda draw: IntegerAttr(draw(st.sampled_from(NUMBERS)), i64),
    "axis": lambda draw: IntegerAttr(draw(st.sampled_from(NUMBERS)), i64),
    "keepdims": lambda draw: IntegerAttr(draw(st.sampled_from(NUMBERS)), i64),
    ASYNCHRONOUS: lambda draw: UnitAttr(),
}


def changed(draw: Draw, attribute: Attribute) -> Attribute | None:
    """Another attribute of the same kind."""
    match attribute:
        case IntegerAttr():
            old = attribute.value.data
            new = draw(st.sampled_from([old + 1, old - 1, -old, *NUMBERS]))
            try:
                return IntegerAttr(new, attribute.type)
            except Exception:
                return None  # does not fit the type
        case FloatAttr():
            numbers = [0.0, -1.0, 1e30, 0.5, float("nan"), float("inf")]
            return FloatAttr(draw(st.sampled_from(numbers)), attribute.type)
        case StringAttr():
            return StringAttr(draw(st.sampled_from(TEXTS)))
        case ArrayAttr():
            items = list(attribute.data)
            if items and draw(st.booleans()):
                index = draw(st.integers(0, len(items) - 1))
                new = changed(draw, items[index])
                items[index] = items[index] if new is None else new
            elif items and draw(st.booleans()):
                items.pop(draw(st.integers(0, len(items) - 1)))
            elif items:
                items = draw(st.permutations([*items, items[0]]))
            return ArrayAttr(items)
        case _:
            return None


@mutation
def change_attribute(draw: Draw, module: ModuleOp) -> str | None:
    op = _pick(draw, [o for o in _ops(module) if o.properties])
    if op is None:
        return None
    name = draw(st.sampled_from(sorted(op.properties)))
    new = changed(draw, op.properties[name])
    if new is not None:
        op.properties[name] = new
    elif not isinstance(op, CallOp) and draw(st.booleans()):
        del op.properties[name]
    return f"{name} of {op.name}"


@mutation
def add_attribute(draw: Draw, module: ModuleOp) -> str | None:
    op = _pick(draw, _ops(module))
    if op is None:
        return None
    name = draw(st.sampled_from(sorted(EXTRA)))
    holder = op.attributes if name == ASYNCHRONOUS else op.properties
    holder[name] = EXTRA[name](draw)
    return f"{name} for {op.name}"


@mutation
def change_axes(draw: Draw, module: ModuleOp) -> str | None:
    op = _pick(draw, _ops(module, CollectiveOp))
    if op is None:
        return None
    axes = [a for mesh in meshes(module).values() for a, _ in mesh.axes]
    chosen = draw(st.lists(st.sampled_from([*axes, "z"]), max_size=3))
    op.properties["axes"] = ArrayAttr([StringAttr(a) for a in chosen])
    return f"axes of {op.name} to {chosen}"


KINDS = [
    AllReduceOp,
    AllGatherOp,
    ReduceScatterOp,
    AllToAllOp,
    SliceOp,
    PermuteOp,
    BroadcastOp,
    ScatterOp,
    ReduceOp,
    GatherOp,
]


@mutation
def other_collective(draw: Draw, module: ModuleOp) -> str | None:
    op = _pick(draw, _ops(module, CollectiveOp, dist.SendOp))
    if op is None:
        return None
    axes = ["d"] if isinstance(op, dist.SendOp) else list(op.axis_names)  # type: ignore[attr-defined]
    new: Operation = draw(st.sampled_from(KINDS))(
        op.operands[0], axes, op.results[0].type
    )
    if draw(st.integers(0, 5)) == 0:
        new = dist.SendOp(op.operands[0], op.results[0].type)
    elif draw(st.integers(0, 5)) == 0:
        new = dist.ReshardOp(op.operands[0], op.results[0].type)
    Rewriter.replace_op(op, new)
    return f"{op.name} to {new.name}"


@mutation
def insert_communication(draw: Draw, module: ModuleOp) -> str | None:
    """A collective or send behind a value, for all uses or one; its layout at will."""
    value = _pick(draw, [v for v in _values(module) if list(v.uses)])
    if value is None or not isinstance(value.type, TensorType):
        return None
    layout = _other_layout(draw, value, module) if draw(st.booleans()) else None
    type_ = value.type if layout is None else with_layout(value.type, layout)
    axes = [*(a for mesh in meshes(module).values() for a, _ in mesh.axes), "d"]
    kind = draw(st.sampled_from([*KINDS, None]))
    op: Operation
    if kind is None:
        op = dist.SendOp(value, type_)
    else:
        op = kind(value, [draw(st.sampled_from(axes))], type_)
    uses = list(value.uses)
    if isinstance(value, BlockArgument):
        point = InsertPoint.at_start(value.block)
    else:
        point = InsertPoint.after(value.owner)  # type: ignore[arg-type]
    Rewriter.insert_op(op, point)
    for use in uses if draw(st.booleans()) else uses[:1]:
        use.operation.operands[use.index] = op.results[0]
    return f"{op.name} behind {value.name_hint}"


@mutation
def insert_per_rank(draw: Draw, module: ModuleOp) -> str | None:
    """An op of the per-rank form."""
    value = _pick(draw, [v for v in _values(module) if list(v.uses)])
    if value is None or isinstance(value, BlockArgument):
        return None
    kind = draw(st.integers(0, 3))
    op: Operation
    if kind == 0:
        op = CoordinateOp(["d"], draw(st.integers(0, 1)))
    elif kind == 1:
        op = SendToRankOp(value, draw(st.integers(0, 1)))
    elif kind == 2:
        op = RecvFromRankOp(value.type, draw(st.integers(0, 1)))
    else:
        op = WaitOp(value)
    owner = value.owner
    assert isinstance(owner, Operation)
    Rewriter.insert_op(op, InsertPoint.after(owner))
    if op.results and op.results[0].type == value.type and draw(st.booleans()):
        for use in list(value.uses):
            if use.operation is not op:
                use.operation.operands[use.index] = op.results[0]
    return f"{op.name} behind {owner.name}"


@mutation
def change_mesh(draw: Draw, module: ModuleOp) -> str | None:
    mesh = _pick(draw, [o for o in module.body.block.ops if isinstance(o, MeshOp)])
    if mesh is None:
        return None
    axes, devices = list(mesh.axes.data), list(mesh.devices.data)
    kind = draw(st.integers(0, 3))
    if kind == 0:
        devices = draw(st.permutations(devices))
    elif kind == 1 and devices:
        devices[0] = draw(st.sampled_from([devices[-1], 99, 0]))
    elif kind == 2:
        axes = draw(st.permutations(axes))
    elif axes:
        index = draw(st.integers(0, len(axes) - 1))
        axes[index] = (axes[index][0], draw(st.sampled_from([1, 2, 3, 4])))
    try:
        new = MeshOp(mesh.sym_name.data, mesh.cluster.string_value(), axes, devices)
    except Exception:
        return None  # no mesh at all
    Rewriter.replace_op(mesh, new)
    return f"mesh {axes} on {devices}"


@mutation
def change_type(draw: Draw, module: ModuleOp) -> str | None:
    """Another shape or element type of one value."""
    value = _pick(draw, _values(module))
    if value is None or not isinstance(value.type, TensorType):
        return None
    shape, element = list(value.type.get_shape()), value.type.element_type
    if shape and draw(st.booleans()):
        index = draw(st.integers(0, len(shape) - 1))
        shape[index] = draw(st.sampled_from([0, 1, 2, 3, 4, 8, shape[index] + 1]))
    elif draw(st.booleans()):
        shape = [*shape, 1] if draw(st.booleans()) else shape[1:]
    else:
        element = draw(st.sampled_from([f32, i64]))
    _retype(value, TensorType(element, shape, value.type.encoding))
    return f"type of {value.name_hint} to {shape} {element}"


@mutation
def change_function(draw: Draw, module: ModuleOp) -> str | None:
    """What a function returns or says that it returns, or whom a call calls."""
    call = _pick(draw, _ops(module, CallOp))
    names = sorted(functions(module))
    if call is not None and draw(st.booleans()):
        call.properties["callee"] = CallOp(draw(st.sampled_from(names)), [], []).callee
        return "callee"
    function = functions(module)[draw(st.sampled_from(names))]
    outputs = list(function.function_type.outputs.data)
    if not outputs:
        return None
    function.properties["function_type"] = FunctionType.from_lists(
        function.function_type.inputs.data, draw(st.permutations(outputs))
    )
    last = function.body.block.last_op
    if draw(st.booleans()) and last is not None:
        last.operands = draw(st.permutations(list(last.operands)))
    return "results"
