"""
Checks of shapes that neither the names of dimensions (`shapes.SHAPES`) nor ONNX's
inference cover: axes in range, divisibility, one value per dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Attribute

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.shapes import SHAPES, Shape, Shapes, agree
from distir.dialects.registries import Registry

Check = Callable[[Shapes], None]

shape_check = Registry[Check](__name__)
"""
Registers the check of the operators with the given names, in addition to `SHAPES`.
"""


def check_shapes(op: OnnxOp, operand_types: Sequence[Attribute]) -> None:
    """
    Raises VerifyException if the op's shapes do not fit each other or its attributes.
    """
    name = op.SCHEMA.name
    check = shape_check.get(name)
    if op.SCHEMA.domain or (name not in SHAPES and check is None):
        return
    shapes = Shapes(op, operand_types)
    if name in SHAPES:
        shapes.match(SHAPES[name])
    if check is not None:
        check(shapes)


@shape_check("Split")
def _split(shapes: Shapes) -> None:
    count, asked = len(shapes.op.results), shapes.op.attribute("num_outputs")
    if asked is not None:
        shapes.require(asked == count, f"num_outputs is {asked} of {count} results")
    data, sizes = shapes[0], shapes[1]
    if sizes is not None:
        shapes.equal(sizes[0], count, "expected as many sizes as results")
    if data is not None:
        shapes.axis(len(data))


@shape_check("Gather", "Concat", "TopK", "CumSum", "Hardmax", "TensorScatter")
def _axis_of_first(shapes: Shapes) -> None:
    data = shapes[0]
    if data is not None and "axis" in shapes.op.SCHEMA.attributes:
        shapes.axis(len(data))


@shape_check("GatherElements", "ScatterElements")
def _elements(shapes: Shapes) -> None:
    data, indices = shapes[0], shapes[1]
    if data is None or indices is None:
        return
    axis = shapes.axis(len(data))
    shapes.require(
        len(indices) == len(data), "data and indices differ in their numbers of dims"
    )
    for i, (size, picked) in enumerate(zip(data, indices, strict=True)):
        shapes.require(
            i == axis or size < 0 or picked <= size,
            f"the indices have more elements than the data in dimension {i}",
        )


@shape_check("GatherND")
def _gather_nd(shapes: Shapes) -> None:
    data, indices = shapes[0], shapes[1]
    if data is None or indices is None:
        return
    batch = shapes.op.attribute("batch_dims")
    shapes.require(
        0 <= batch < min(len(data), len(indices)), f"batch_dims {batch} are too many"
    )
    for a, b in zip(data[:batch], indices[:batch], strict=True):
        shapes.equal(a, b, "expected equal batches")
    shapes.require(
        indices[-1] <= len(data) - batch, f"{indices[-1]} indices are too many"
    )


@shape_check("ScatterND")
def _scatter_nd(shapes: Shapes) -> None:
    data, indices, updates = shapes[0], shapes[1], shapes[2]
    if data is None or indices is None or updates is None:
        return
    shapes.require(bool(indices) and bool(data), "data and indices have no dimension")
    depth = indices[-1]
    shapes.require(depth <= len(data), f"{depth} indices are too many")
    if depth >= 0:
        expected = (*indices[:-1], *data[depth:])
        shapes.require(
            agree(expected, updates), f"expected updates of {list(expected)}"
        )


def _window(shapes: Shapes, kernel: Shape | None, groups: int = 1) -> None:
    """
    Checks that each window attribute (such as `strides` and `pads`) has the right
    number of values for the spatial dimensions.
    """
    source, op = shapes[0], shapes.op
    if source is None:
        return
    rank = len(source) - 2
    shapes.require(rank >= 1, "there is no dimension behind batch and channels")
    for name, count in (
        ("kernel_shape", rank),
        ("strides", rank),
        ("dilations", rank),
        ("output_padding", rank),
        ("pads", 2 * rank),
    ):
        if name in op.SCHEMA.attributes and op.attribute(name) is not None:
            given = len(op.attribute(name))
            shapes.require(given == count, f"{name} has {given} values of {count}")
    if kernel is not None:
        shapes.require(len(kernel) == rank, f"the kernel has {len(kernel)} dimensions")
        for a, b in zip(kernel, op.attribute("kernel_shape", kernel), strict=True):
            shapes.equal(a, b, "kernel_shape and weights differ")
    shapes.divides(groups, source[1], "channels cannot be divided by group")


@shape_check("AveragePool", "LpPool", "MaxPool")
def _pool(shapes: Shapes) -> None:
    _window(shapes, None)


@shape_check("Conv", "ConvInteger")
def _convolution(shapes: Shapes) -> None:
    data, weight, groups = shapes[0], shapes[1], shapes.op.attribute("group")
    _window(shapes, weight and weight[2:], groups)
    if weight is not None and data is not None:
        shapes.divides(groups, weight[0], "output channels cannot be divided by group")
        shapes.equal(data[1], weight[1] * groups, "channels and weights differ")
        _fits(shapes, data[2:], weight[2:])


def _fits(shapes: Shapes, space: Shape, kernel: Shape) -> None:
    """
    Checks that the padded input of a convolution, with sizes `space`, is at least as
    large as the kernel.
    """
    op, rank = shapes.op, len(space)
    if op.attribute("auto_pad", "NOTSET").startswith("SAME"):
        return
    pads = op.attribute("pads", [0] * (2 * rank))
    dilations = op.attribute("dilations", [1] * rank)
    for i, (size, taps) in enumerate(zip(space, kernel, strict=True)):
        reach, padded = (taps - 1) * dilations[i] + 1, size + pads[i] + pads[i + rank]
        shapes.require(
            min(size, taps) < 0 or reach <= padded,
            f"a kernel that reaches over {reach} elements is larger than the {padded} of the "
            f"padded input in dimension {i + 2}",
        )


@shape_check("ConvTranspose")
def _transposed_convolution(shapes: Shapes) -> None:
    weight, groups = shapes[1], shapes.op.attribute("group")
    _window(shapes, weight and weight[2:], groups)
    target = shapes.results[0]
    if weight is not None and target is not None:
        shapes.equal(target[1], weight[1] * groups, "result and weights differ")


@shape_check("Resize")
def _resize(shapes: Shapes) -> None:
    data, scales, sizes = shapes[0], shapes[2], shapes[3]
    if data is None:
        return
    shapes.require(
        (scales is None) != (sizes is None),
        "expected either scales or sizes; write `none` for the other",
    )
    axes = shapes.op.attribute("axes", range(len(data)))
    for given in (scales, sizes):
        shapes.require(
            given is None or agree(given, (len(axes),)),
            f"expected scales or sizes of {len(axes)} axes",
        )


@shape_check("DepthToSpace", "SpaceToDepth")
def _blocks(shapes: Shapes) -> None:
    data, block = shapes[0], shapes.op.attribute("blocksize")
    if data is None:
        return
    if shapes.op.SCHEMA.name == "DepthToSpace":
        shapes.divides(block * block, data[1], "channels cannot be divided by")
    else:
        for size in data[2:]:
            shapes.divides(block, size, "cannot be divided by blocksize")


@shape_check("GroupNormalization")
def _groups(shapes: Shapes) -> None:
    data, groups = shapes[0], shapes.op.attribute("num_groups")
    if data is not None:
        shapes.divides(groups, data[1], "channels cannot be divided by num_groups")


@shape_check("LayerNormalization", "RMSNormalization")
def _normalization(shapes: Shapes) -> None:
    data = shapes[0]
    if data is None:
        return
    shapes.axis(len(data))
    for position in (1, 2):
        scale = shapes[position] or ()
        broadcast = [1] * (len(data) - len(scale)) + list(scale)
        shapes.require(
            len(broadcast) == len(data)
            and all(
                m < 0 or n < 0 or m in (1, n)
                for m, n in zip(broadcast, data, strict=True)
            ),
            f"scale and bias of {list(scale)} cannot be broadcast to the input",
        )


@shape_check("QuantizeLinear", "DequantizeLinear")
def _quantization(shapes: Shapes) -> None:
    data, scale = shapes[0], shapes[1]
    if data is None or scale is None:
        return
    # A single zero point may be [] or [1], and so may a single scale.
    zero = shapes[2]
    if zero is not None and (scale, zero) not in (((), (1,)), ((1,), ())):
        shapes.require(agree(scale, zero), "scale and zero point differ")
    blocked = shapes.op.attribute("block_size")
    if len(scale) == 1 and not blocked and scale != (1,):
        axis = shapes.axis(len(data))
        shapes.equal(scale[0], data[axis], "expected a scale for each slice")
    if len(scale) > 1 or blocked:
        shapes.axis(len(data))
        shapes.require(
            len(scale) == len(data), "a scale per block has the dimensions of the data"
        )


@shape_check("Tile")
def _repeats(shapes: Shapes) -> None:
    data, repeats, result = shapes[0], shapes[1], shapes.results[0]
    if data is None:
        return
    if repeats is not None:
        shapes.equal(repeats[0], len(data), "expected a number per dimension")
    if result is not None:
        for size, after in zip(data, result, strict=False):
            if size > 0:
                shapes.divides(size, after, "is no multiple of")


@shape_check("OneHot")
def _one_hot(shapes: Shapes) -> None:
    indices = shapes[0]
    if indices is not None:
        shapes.axis(len(indices) + 1)


@shape_check("Einsum")
def _einsum(shapes: Shapes) -> None:
    """
    Checks that equal letters of the equation stand for equal sizes, or for size 1, in
    operands and result.
    """
    equation = shapes.op.attribute("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        once = sorted(c for c in left if c.isalpha() and left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    count = len(shapes.operands)
    shapes.require(len(terms) == count, f"{equation!r} is not for {count} operands")
    shapes.require(
        set(right) <= set(left), f"{equation!r} has a result of unknown letters"
    )
    sizes: dict[str, int] = {}

    def letters(term: str, shape: Shape) -> list[tuple[str, int]]:
        before, dots, after = term.partition("...")
        named = len(before) + len(after)
        shapes.require(
            named <= len(shape) if dots else named == len(shape),
            f"{term!r} does not name the dimensions of {list(shape)}",
        )
        return [
            *zip(before, shape, strict=False),
            *zip(after[::-1], shape[::-1], strict=False),
        ]

    for term, shape in zip(terms, shapes.operands, strict=True):
        for letter, size in letters(term, shape) if shape is not None else ():
            if size >= 0 and size != 1 and sizes.setdefault(letter, size) != size:
                shapes.fail(f"{letter!r} is {sizes[letter]} and {size}")
    result, known = shapes.results[0], None not in shapes.operands
    if result is not None:
        for letter, size in letters(right, result):
            if letter in sizes or (known and letter.isalpha() and size == 1):
                shapes.equal(size, sizes.get(letter, 1), f"{letter!r} of the result")


@shape_check("LSTM", "GRU", "RNN")
def _recurrent(shapes: Shapes) -> None:
    op = shapes.op
    kind = op.SCHEMA.name
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    sequence, weight, recurrence = shapes[0], shapes[1], shapes[2]
    if sequence is None or weight is None or recurrence is None:
        return
    ranks = [len(s) for s in (sequence, weight, recurrence)]
    shapes.require(ranks == [3, 3, 3], "expected three dimensions each")
    directions = 2 if op.attribute("direction") == "bidirectional" else 1
    hidden = op.attribute("hidden_size", recurrence[2])
    first = 0 if op.attribute("layout") else 1
    batch = sequence[first]
    state = (batch, directions, hidden) if first == 0 else (directions, batch, hidden)
    expected = {
        "W": (directions, gates * hidden, sequence[2]),
        "R": (directions, gates * hidden, hidden),
        "B": (directions, 2 * gates * hidden),
        "sequence_lens": (batch,),
        "initial_h": state,
        "initial_c": state,
        "P": (directions, 3 * hidden),
    }
    for position, formal in enumerate(op.SCHEMA.inputs[1:], 1):
        shapes.fits(position, expected[formal.name])


@shape_check("RotaryEmbedding")
def _rotary(shapes: Shapes) -> None:
    op, data = shapes.op, shapes[0]
    if data is None:
        return
    heads = op.attribute("num_heads", 0)
    shapes.require(len(data) in (3, 4), "expected three or four dimensions")
    if len(data) == 3:
        shapes.require(heads > 0, "three dimensions need the attribute num_heads")
        shapes.divides(heads, data[2], "cannot be divided by num_heads")
        batch, row, size = data[0], data[1], data[2] // heads
    else:
        batch, row, size = data[0], data[2], data[3]
        if heads:
            shapes.equal(heads, data[1], "num_heads and the second dimension differ")
    rotated = op.attribute("rotary_embedding_dim") or size
    shapes.divides(2, rotated, "rotated elements are not a multiple of")
    shapes.require(size < 0 or rotated <= size, f"{rotated} elements of {size} rotate")
    shapes.fits(3, (batch, row))
    cached: Shape = (batch, row) if shapes[3] is None else (-1,)
    for position in (1, 2):
        shapes.fits(position, (*cached, rotated // 2 if size >= 0 else -1))


@shape_check("Attention")
def _attention(shapes: Shapes) -> None:
    if shapes[0] is None or shapes[1] is None or shapes[2] is None:
        return
    batch, heads, queries, size = _with_heads(shapes, 0, "q_num_heads")
    _, key_heads, keys, _ = key = _with_heads(shapes, 1, "kv_num_heads")
    *_, value_size = value = _with_heads(shapes, 2, "kv_num_heads")
    for what, got, expected in (
        ("keys", key, (batch, key_heads, keys, size)),
        ("values", value, (batch, key_heads, keys, value_size)),
    ):
        if not agree(got, expected):
            shapes.fail(f"the {what} should be {expected} by heads, but are {got}")
    if key_heads > 0:
        shapes.divides(key_heads, heads, "query heads cannot be divided by")
    past = shapes[4]
    length = -1 if past is None or len(past) != 4 else past[2]
    shapes.fits(4, (batch, key_heads, -1, size))
    shapes.fits(5, (batch, key_heads, length, value_size))
    shapes.fits(6, (batch,))
    if past is not None:
        keys = keys + length if keys >= 0 and length >= 0 else -1
    mask, scores = shapes[3], (batch, heads, queries, keys)
    # A mask may have fewer columns than there are keys; other keys are left out.
    if mask is not None and not (
        1 <= len(mask) <= 4
        and all(
            m < 0 or m == 1 or n < 0 or m == n or (i == 0 and m <= n)
            for i, (m, n) in enumerate(zip(mask[::-1], scores[::-1], strict=False))
        )
    ):
        shapes.fail(f"the mask does not fit scores of shape {list(scores)}")


def _with_heads(shapes: Shapes, position: int, heads: str) -> Shape:
    """
    Returns the batch size, the number of heads, the length and the head size of the
    queries, keys or values at `position`. If this operand has three dimensions, the
    attribute `heads` gives the number of heads. Raises VerifyException if the shape
    does not fit.
    """
    shape, first = shapes[position], shapes[0]
    if shape is None or first is None or len(shape) != len(first):
        shapes.fail("expected as many dimensions of queries, keys and values")
    if len(shape) == 4:
        return shape
    shapes.require(len(shape) == 3, "expected three or four dimensions")
    count = shapes.op.attribute(heads)
    shapes.require(count is not None, f"three dimensions need the attribute {heads}")
    shapes.divides(count, shape[2], f"cannot be divided by {heads}")
    return shape[0], count, shape[1], shape[2] // count if shape[2] >= 0 else -1
