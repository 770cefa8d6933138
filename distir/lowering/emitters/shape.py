"""Emitters of ops that rearrange elements or return shapes."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.per_rank import CoordinateOp
from distir.dialects.onnx_ops.traits import SAME_VALUES
from distir.dialects.onnx_ops.values import constant_value
from distir.dialects.torch import IN_PLACE
from distir.dialects.train_ops.flattening import FlattenOp, UnflattenOp
from distir.lowering.emitter import Call, known_constant, literal, torch_emitter


@torch_emitter("onnx.Constant")
def constant(call: Call) -> str:
    raise call.fail("write the constant in the attribute `value`")


def _or_known(call: Call, method: str, otherwise: str, module: str = "shapes") -> str:
    """
    Returns a call of the tensor method `method` with the shape of the result, if this
    shape is known. Otherwise returns the template `otherwise`, a call in helper module
    `module`.
    """
    shape = call.result_shape()
    if shape is not None:
        return call.write(f"{{0}}.{method}({{shape}})", shape=repr(shape))
    return call.write(otherwise, module)


@torch_emitter("onnx.Reshape")
def reshape(call: Call) -> str:
    template = "reshape({0}, {1:integers}, allow_zero={allowzero:flag})"
    return _or_known(call, "reshape", template)


@torch_emitter("onnx.Flatten")
def flatten(call: Call) -> str:
    return _or_known(call, "reshape", "flatten({0}, {axis})")


@torch_emitter("onnx.Squeeze")
def squeeze(call: Call) -> str:
    axes = "tuple({1:integers})" if call.has(1) else ""
    return _or_known(call, "reshape", f"{{0}}.squeeze({axes})", module="")


@torch_emitter("onnx.Unsqueeze")
def unsqueeze(call: Call) -> str:
    axes = call.constant(1)
    if axes is not None and axes.size == 1:
        return f"{call.operand(0)}.unsqueeze({int(axes.reshape(-1)[0])})"
    return _or_known(call, "reshape", "unsqueeze({0}, {1:integers})")


@torch_emitter("onnx.Expand")
def expand(call: Call) -> str:
    return _or_known(call, "expand", "expand({0}, {1:integers})")


@torch_emitter("onnx.TensorScatter")
def tensor_scatter(call: Call) -> str:
    places = "{2}" if call.has(2) else "None"
    in_place = ", in_place=True" if IN_PLACE in call.op.attributes else ""
    template = (
        f"tensor_scatter({{0}}, {{1}}, {places}, {{axis}}, mode={{mode}}{in_place})"
    )
    return call.write(template, "indexing")


@torch_emitter("onnx.Transpose")
def transpose(call: Call) -> str:
    order = call.attribute("perm")
    if order is None:
        order = list(reversed(range(call.rank())))
    if list(order) == list(range(len(order))):
        return call.operand(0)
    moved = [i for i, o in enumerate(order) if i != o]
    if len(moved) == 2:
        return f"{call.operand(0)}.transpose({moved[0]}, {moved[1]})"
    return f"{call.operand(0)}.permute({tuple(order)!r})"


def _here(call: Call) -> str:
    """Returns the keyword argument that creates a new tensor on the current device."""
    return f"device={call.helper('devices')}.here()"


@torch_emitter("onnx.Shape")
def shape(call: Call) -> str:
    start, end = call.attribute("start"), call.attribute("end")
    part = (
        "" if start == 0 and end is None else f"[{start}:{'' if end is None else end}]"
    )
    device = _here(call)
    return f"torch.tensor({call.operand(0)}.shape{part}, dtype=torch.int64, {device})"


@torch_emitter("onnx.Split")
def split(call: Call) -> str:
    axis, x = call.attribute("axis"), call.operand(0)
    results = len(call.op.results)
    sizes = call.constant(1)
    if sizes is not None:
        written = f"{x}.split({sizes.tolist()!r}, {axis})"
    elif call.has(1):
        written = f"{x}.split({call.integers(1)}, {axis})"
    else:
        dim = call.shape()[axis] if call.is_ranked(0) else -1
        if dim < 0:
            written = f"{call.helper('shapes')}.split_evenly({x}, {results}, {axis})"
        else:
            each = -(-dim // results)
            last = dim - each * (results - 1)
            written = f"{x}.split({[each] * (results - 1) + [last]!r}, {axis})"
    return f"{written}[0]" if results == 1 else written


@torch_emitter("onnx.Slice")
def slice_(call: Call) -> str:
    starts, ends = call.constant(1), call.constant(2)
    axes, steps = call.constant(3), call.constant(4)
    known = (
        starts is not None
        and ends is not None
        and (axes is not None or not call.has(3))
        and (steps is not None or not call.has(4))
        and (steps is None or bool((steps > 0).all()))
        and call.is_ranked(0)
    )
    if not known:
        values = ", ".join(call.integers(i) for i in range(1, 5))
        return call.write("slice_({0}, {values})", "shapes", values=values)
    assert starts is not None and ends is not None
    rank = call.rank()
    ranges = [":"] * rank
    shape = call.shape()
    for i in range(starts.size):
        axis = i if axes is None else int(axes[i]) % rank
        start, end = int(starts[i]), int(ends[i])
        step = 1 if steps is None else int(steps[i])
        after = "" if end >= 2**31 - 1 or 0 <= shape[axis] <= end else str(end)
        before = "" if start == 0 or start <= -(2**31) else str(start)
        ranges[axis] = f"{before}:{after}" + ("" if step == 1 else f":{step}")
    while len(ranges) > 1 and ranges[-1] == ":":
        ranges.pop()
    return f"{call.operand(0)}[{', '.join(ranges)}]" if ranges else call.operand(0)


@torch_emitter("onnx.Gather")
def gather(call: Call) -> str:
    axis = call.attribute("axis") % max(call.rank(), 1)
    indices = call.constant(1)
    x = call.operand(0)
    if indices is not None and indices.ndim == 0:
        return f"{x}.select({axis}, {int(indices)})"
    value = call.value(1)
    if (
        axis == 0
        and call.rank() == 2
        and "FLOAT" in call.element(0)
        and value is not None
        and _is_non_negative(value)  # else F.embedding would refuse some
    ):
        return f"F.embedding({call.operand(1)}, {x})"
    return f"{x}[{':, ' * axis}{call.operand(1)}]"


@torch_emitter("onnx.Unique")
def unique(call: Call) -> str:
    template = "unique({0}, {axis}, ordered={sorted:flag})"
    return call.first(call.write(template, "indexing"))


@torch_emitter("onnx.ConstantOfShape")
def constant_of_shape(call: Call) -> str:
    attr = call.op.properties.get("value")
    value = "0.0" if attr is None else literal(constant_value(attr))
    shape = call.result_shape()
    dims = call.integers(0) if shape is None else repr(shape)
    return f"torch.full({dims}, {value}, dtype={call.result_dtype()}, {_here(call)})"


@torch_emitter("onnx.Range")
def range_(call: Call) -> str:
    start, limit, delta = (call.number(i) for i in range(3))
    written = f"{start}, {limit}, {delta}, {_here(call)}"
    dtype = call.result_dtype()
    if call.element(0) in ("FLOAT16", "BFLOAT16"):
        return f"torch.arange({written}, dtype=torch.float32).to({dtype})"
    return f"torch.arange({written}, dtype={dtype})"


@torch_emitter("onnx.EyeLike")
def eye_like(call: Call) -> str:
    if call.attribute("k") == 0:
        eye = "torch.eye({0}.shape[0], {0}.shape[1], dtype={result:dtype}, device={0}.device)"
        return call.write(eye)
    full = "torch.ones({0}.shape, dtype={result:dtype}, device={0}.device)"
    return call.write(f"{full}.triu({{k}}).tril({{k}})")


@torch_emitter("onnx.Trilu")
def trilu(call: Call) -> str:
    function = "triu" if call.attribute("upper") else "tril"
    k = call.integer(1) if call.has(1) else "0"
    return f"{call.operand(0)}.{function}({k})"


@torch_emitter("onnx.Pad")
def pad(call: Call) -> str:
    template = "pad({0}, {1:integers}, {3:integers}, mode={mode}, value={value})"
    value = call.number(2) if call.has(2) else "0"
    return call.write(template, "shapes", value=value)


@torch_emitter("onnx.DepthToSpace")
def depth_to_space(call: Call) -> str:
    if call.attribute("mode") == "CRD":
        return call.write("F.pixel_shuffle({0}, {blocksize})")
    return call.write("depth_to_space({0}, {blocksize})", "shapes")


@torch_emitter("onnx.SpaceToDepth")
def space_to_depth(call: Call) -> str:
    if call.has_attribute("mode") and call.attribute("mode") == "CRD":
        return call.write("F.pixel_unshuffle({0}, {blocksize})")
    return call.write("space_to_depth({0}, {blocksize})", "shapes")


@torch_emitter("onnx.SequenceInsert")
def sequence_insert(call: Call) -> str:
    place = "{2:integer}" if call.has(2) else "len({0})"
    return call.write(f"sequence_insert({{0}}, {{1}}, {place})", "shapes")


@torch_emitter("onnx.SequenceErase")
def sequence_erase(call: Call) -> str:
    place = "{1:integer}" if call.has(1) else "-1"
    return call.write(f"sequence_erase({{0}}, {place})", "shapes")


@torch_emitter("onnx.SplitToSequence")
def split_to_sequence(call: Call) -> str:
    sizes, keep = "1", "{keepdims:flag}"
    if call.has(1):
        sizes = "{1:integer}" if call.rank(1) == 0 else "{1:integers}"
        keep = "True"
    template = f"split_to_sequence({{0}}, {sizes}, {{axis}}, keep={keep})"
    return call.write(template, "shapes")


@torch_emitter("onnx.ConcatFromSequence")
def concat_from_sequence(call: Call) -> str:
    function = "stack" if call.attribute("new_axis") else "cat"
    return call.write(f"torch.{function}({{0}}, {{axis}})")


_PASSES_ON = SAME_VALUES | {"onnx.Slice"}
"""
Ops whose results consist of elements of their first operand (for Concat: of all
operands).
"""


def _is_non_negative(value: SSAValue) -> bool:
    """Whether the ops that compute `value` show that no element can be negative."""
    known = known_constant(value)
    if known is not None:
        return bool((known >= 0).all())
    op = value.owner
    if not isinstance(op, Operation):
        return False
    if isinstance(op, CoordinateOp):
        return True
    if isinstance(op, CollectiveOp) and not op.REDUCES:
        return _is_non_negative(op.source)
    match op.name:
        case "onnx.Abs":
            return True
        case "onnx.Max":
            return any(map(_is_non_negative, op.operands))
        case "onnx.Clip":
            return len(op.operands) > 1 and _is_non_negative(op.operands[1])
        case "onnx.Where":
            return all(map(_is_non_negative, op.operands[1:]))
        case "onnx.Add" | "onnx.Mul" | "onnx.Range":
            return all(map(_is_non_negative, op.operands))
        case name:
            passed = op.operands if name == "onnx.Concat" else op.operands[:1]
            return name in _PASSES_ON and all(map(_is_non_negative, passed))


@torch_emitter("train.flatten")
def flatten_blocks(call: Call) -> str:
    assert isinstance(call.op, FlattenOp)
    shape = call.result_shape()
    assert shape is not None
    given = [call.operand(0), repr(shape[0]), *_blocks(call.op)]
    return call.like_op("flattening", given)


@torch_emitter("train.unflatten")
def unflatten_blocks(call: Call) -> str:
    assert isinstance(call.op, UnflattenOp)
    given = [call.operand(0), repr(call.result_shape()), *_blocks(call.op)]
    return call.like_op("flattening", given)


def _blocks(op: FlattenOp | UnflattenOp) -> list[str]:
    """
    Returns the argument for the op's blocks as a list of one text, or an empty list if
    there are no blocks.
    """
    parts = tuple(tuple(split) for split in op.parts)
    return [repr(parts)] if parts else []
