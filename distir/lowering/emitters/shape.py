"""Emitters of ops that rearrange elements or speak of shapes."""

from __future__ import annotations

from distir.dialects.onnx_values import constant_value
from distir.lowering.emitter import Call, literal, torch_emitter
from distir.lowering.ranges import is_non_negative


@torch_emitter("onnx.Constant")
def constant(call: Call) -> str:
    raise call.fail("write the constant in the attribute `value`")


@torch_emitter("onnx.Reshape")
def reshape(call: Call) -> str:
    shape = call.result_shape()
    if shape is not None:
        return f"{call.operand(0)}.reshape({shape!r})"
    return (
        f"{call.helper('shapes')}.reshape({call.operand(0)}, {call.integers(1)}, "
        f"allow_zero={bool(call.attribute('allowzero'))})"
    )


@torch_emitter("onnx.Flatten")
def flatten(call: Call) -> str:
    shape = call.result_shape()
    if shape is not None:
        return f"{call.operand(0)}.reshape({shape!r})"
    return (
        f"{call.helper('shapes')}.flatten({call.operand(0)}, {call.attribute('axis')})"
    )


@torch_emitter("onnx.Squeeze")
def squeeze(call: Call) -> str:
    shape = call.result_shape()
    if shape is not None:
        return f"{call.operand(0)}.reshape({shape!r})"
    axes = f"tuple({call.integers(1)})" if call.has(1) else ""
    return f"{call.operand(0)}.squeeze({axes})"


@torch_emitter("onnx.Unsqueeze")
def unsqueeze(call: Call) -> str:
    axes = call.constant(1)
    if axes is not None and axes.size == 1:
        return f"{call.operand(0)}.unsqueeze({int(axes.reshape(-1)[0])})"
    shape = call.result_shape()
    if shape is not None:
        return f"{call.operand(0)}.reshape({shape!r})"
    return f"{call.helper('shapes')}.unsqueeze({call.operand(0)}, {call.integers(1)})"


@torch_emitter("onnx.Expand")
def expand(call: Call) -> str:
    shape = call.result_shape()
    if shape is not None:
        return f"{call.operand(0)}.expand({shape!r})"
    return f"{call.helper('shapes')}.expand({call.operand(0)}, {call.integers(1)})"


@torch_emitter("onnx.Tile")
def tile(call: Call) -> str:
    return f"{call.operand(0)}.repeat({call.integers(1)})"


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


@torch_emitter("onnx.Shape")
def shape(call: Call) -> str:
    start, end = call.attribute("start"), call.attribute("end")
    part = (
        "" if start == 0 and end is None else f"[{start}:{'' if end is None else end}]"
    )
    return f"torch.tensor({call.operand(0)}.shape{part}, dtype=torch.int64)"


@torch_emitter("onnx.Size")
def size(call: Call) -> str:
    return f"torch.tensor({call.operand(0)}.numel())"


@torch_emitter("onnx.Concat")
def concat(call: Call) -> str:
    return f"torch.cat(({', '.join(call.operands())},), {call.attribute('axis')})"


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
        return f"{call.helper('shapes')}.slice_({call.operand(0)}, {values})"
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
        and is_non_negative(value)  # else F.embedding would refuse some
    ):
        return f"F.embedding({call.operand(1)}, {x})"
    return f"{x}[{':, ' * axis}{call.operand(1)}]"


@torch_emitter("onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(call: Call) -> str:
    return f"{call.operand(0)}.index_select(-1, {call.operand(1)}.reshape(-1))"


@torch_emitter("onnx.GatherElements")
def gather_elements(call: Call) -> str:
    return (
        f"{call.helper('indexing')}.gather_elements({call.operand(0)}, "
        f"{call.operand(1)}, {call.attribute('axis')})"
    )


@torch_emitter("onnx.GatherND")
def gather_nd(call: Call) -> str:
    return (
        f"{call.helper('indexing')}.gather_nd({call.operand(0)}, {call.operand(1)}, "
        f"batch_dims={call.attribute('batch_dims')})"
    )


@torch_emitter("onnx.ScatterElements")
def scatter_elements(call: Call) -> str:
    return (
        f"{call.helper('indexing')}.scatter_elements({', '.join(call.operands())}, "
        f"{call.attribute('axis')}, reduction={call.attribute('reduction')!r})"
    )


@torch_emitter("onnx.ScatterND")
def scatter_nd(call: Call) -> str:
    return (
        f"{call.helper('indexing')}.scatter_nd({', '.join(call.operands())}, "
        f"reduction={call.attribute('reduction')!r})"
    )


@torch_emitter("onnx.TensorScatter")
def tensor_scatter(call: Call) -> str:
    return (
        f"{call.helper('indexing')}.tensor_scatter({call.operand(0)}, "
        f"{call.operand(1)}, {call.operand(2)}, {call.attribute('axis')}, "
        f"mode={call.attribute('mode')!r})"
    )


@torch_emitter("onnx.Compress")
def compress(call: Call) -> str:
    axis = call.attribute("axis")
    return f"{call.helper('indexing')}.compress({call.operand(0)}, {call.operand(1)}, {axis})"


@torch_emitter("onnx.NonZero")
def non_zero(call: Call) -> str:
    return f"{call.operand(0)}.nonzero().transpose(0, 1)"


@torch_emitter("onnx.Unique")
def unique(call: Call) -> str:
    written = (
        f"{call.helper('indexing')}.unique({call.operand(0)}, {call.attribute('axis')}, "
        f"ordered={bool(call.attribute('sorted'))})"
    )
    count = len(call.op.results)
    return f"{written}[0]" if count == 1 else f"{written}[:{count}]"


@torch_emitter("onnx.ConstantOfShape")
def constant_of_shape(call: Call) -> str:
    attr = call.op.properties.get("value")
    value = "0.0" if attr is None else literal(constant_value(attr))
    shape = call.result_shape()
    dims = call.integers(0) if shape is None else repr(shape)
    return f"torch.full({dims}, {value}, dtype={call.result_dtype()})"


@torch_emitter("onnx.Range")
def range_(call: Call) -> str:
    start, limit, delta = (call.number(i) for i in range(3))
    written = f"{start}, {limit}, {delta}"
    dtype = call.result_dtype()
    if call.element(0) in ("FLOAT16", "BFLOAT16"):
        return f"torch.arange({written}, dtype=torch.float32).to({dtype})"
    return f"torch.arange({written}, dtype={dtype})"


@torch_emitter("onnx.EyeLike")
def eye_like(call: Call) -> str:
    rows, columns = (f"{call.operand(0)}.shape[{i}]" for i in range(2))
    k = call.attribute("k")
    full = f"torch.ones(({rows}, {columns}), dtype={call.result_dtype()})"
    if k == 0:
        return f"torch.eye({rows}, {columns}, dtype={call.result_dtype()})"
    return f"{full}.triu({k}).tril({k})"


@torch_emitter("onnx.Trilu")
def trilu(call: Call) -> str:
    function = "triu" if call.attribute("upper") else "tril"
    k = call.integer(1) if call.has(1) else "0"
    return f"{call.operand(0)}.{function}({k})"


@torch_emitter("onnx.OneHot")
def one_hot(call: Call) -> str:
    return (
        f"{call.helper('indexing')}.one_hot({call.operand(0)}, {call.integer(1)}, "
        f"{call.operand(2)}, {call.attribute('axis')})"
    )


@torch_emitter("onnx.Pad")
def pad(call: Call) -> str:
    value = call.number(2) if call.has(2) else "0"
    return (
        f"{call.helper('shapes')}.pad({call.operand(0)}, {call.integers(1)}, "
        f"{call.integers(3)}, mode={call.attribute('mode')!r}, value={value})"
    )


@torch_emitter("onnx.CenterCropPad")
def center_crop_pad(call: Call) -> str:
    return (
        f"{call.helper('shapes')}.center_crop_pad({call.operand(0)}, "
        f"{call.integers(1)}, {call.attribute('axes')!r})"
    )


@torch_emitter("onnx.DepthToSpace")
def depth_to_space(call: Call) -> str:
    size, x = call.attribute("blocksize"), call.operand(0)
    if call.attribute("mode") == "CRD":
        return f"F.pixel_shuffle({x}, {size})"
    return f"{call.helper('shapes')}.depth_to_space({x}, {size})"


@torch_emitter("onnx.SpaceToDepth")
def space_to_depth(call: Call) -> str:
    if call.has_attribute("mode") and call.attribute("mode") == "CRD":
        return f"F.pixel_unshuffle({call.operand(0)}, {call.attribute('blocksize')})"
    size = call.attribute("blocksize")
    return f"{call.helper('shapes')}.space_to_depth({call.operand(0)}, {size})"


@torch_emitter("onnx.ReverseSequence")
def reverse_sequence(call: Call) -> str:
    return (
        f"{call.helper('indexing')}.reverse_sequence({call.operand(0)}, "
        f"{call.operand(1)}, batch_axis={call.attribute('batch_axis')}, "
        f"time_axis={call.attribute('time_axis')})"
    )


# Sequences and optionals: Python lists and None.


@torch_emitter("onnx.SequenceConstruct")
def sequence_construct(call: Call) -> str:
    return f"[{', '.join(call.operands())}]"


@torch_emitter("onnx.SequenceEmpty")
def sequence_empty(call: Call) -> str:
    return "[]"


@torch_emitter("onnx.SequenceAt")
def sequence_at(call: Call) -> str:
    return f"{call.operand(0)}[{call.integer(1)}]"


@torch_emitter("onnx.SequenceLength")
def sequence_length(call: Call) -> str:
    return f"torch.tensor(len({call.operand(0)}))"


@torch_emitter("onnx.SequenceInsert")
def sequence_insert(call: Call) -> str:
    place = call.integer(2) if call.has(2) else f"len({call.operand(0)})"
    return (
        f"{call.helper('shapes')}.sequence_insert({call.operand(0)}, {call.operand(1)}, "
        f"{place})"
    )


@torch_emitter("onnx.SequenceErase")
def sequence_erase(call: Call) -> str:
    place = call.integer(1) if call.has(1) else "-1"
    return f"{call.helper('shapes')}.sequence_erase({call.operand(0)}, {place})"


@torch_emitter("onnx.SplitToSequence")
def split_to_sequence(call: Call) -> str:
    sizes = "1"
    keep = bool(call.attribute("keepdims"))
    if call.has(1):
        keep = True
        sizes = call.integer(1) if call.rank(1) == 0 else call.integers(1)
    return (
        f"{call.helper('shapes')}.split_to_sequence({call.operand(0)}, {sizes}, "
        f"{call.attribute('axis')}, keep={keep})"
    )


@torch_emitter("onnx.ConcatFromSequence")
def concat_from_sequence(call: Call) -> str:
    function = "stack" if call.attribute("new_axis") else "cat"
    return f"torch.{function}({call.operand(0)}, {call.attribute('axis')})"


@torch_emitter("onnx.Optional")
def optional(call: Call) -> str:
    return call.operand(0)


@torch_emitter("onnx.OptionalGetElement")
def optional_get_element(call: Call) -> str:
    return call.operand(0)


@torch_emitter("onnx.OptionalHasElement")
def optional_has_element(call: Call) -> str:
    return f"torch.tensor({call.operand(0)} is not None)"
