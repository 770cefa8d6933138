"""
Derives the sizes of a decoder from its program, by its ops and the shapes of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from distir.dialects.dist_attributes import LIMIT
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.paged_attention import PagedAttentionOp
from distir.dialects.train_ops.quantized_rows import CONVERSIONS
from distir.dialects.train_ops.quantized_weights import (
    EIGHT_BITS,
    GroupQuantizedLinearOp,
    QuantizedLinearOp,
)
from distir.errors import DistIRError
from distir.frontends.models.latent_attention import LatentSizes
from distir.frontends.models.serving_step import DecoderSizes
from distir.frontends.models.step_builder import StepFormats
from distir.program import argument_attributes, argument_roles, functions

_VIEWS = ("onnx.Transpose", "onnx.Identity", *(op.name for op in CONVERSIONS))
"""The ops that may be between a parameter and the product that reads it."""

_ATTENTION = ("onnx.Attention", PagedAttentionOp.name)

_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class ServedModel:
    """
    The model of a program: its sizes, and the most tokens of a sequence (`most_tokens`,
    which is None if there is no limit). The cache or a table of positions limits this
    number; `limit` names the limiting part in messages.
    """

    sizes: DecoderSizes
    most_tokens: int | None
    limit: str

    def check(self, tokens: int) -> None:
        """Raises DistIRError if sequences of `tokens` tokens exceed the limit."""
        if self.most_tokens is not None and tokens > self.most_tokens:
            raise DistIRError(
                f"a request takes {tokens} tokens, prompt and generated ones together, but "
                f"{self.limit} has {self.most_tokens}; ask for shorter requests, or make "
                f"the program for longer ones"
            )


@dataclass(frozen=True)
class _Matrix:
    """
    A matrix product with a parameter [inputs, outputs]; `at` is the index of the
    product's op among the ops of the program.
    """

    inputs: int
    outputs: int
    at: int


@dataclass
class _Facts:
    """
    The facts about one layer: its attention op with the op's index (`place`), its
    products with matrices, the shapes of the parameters of experts, and the number of
    experts per token (`choices`).
    """

    attention: Operation
    place: int
    matrices: Sequence[_Matrix]
    experts: Sequence[tuple[int, ...]]
    choices: int


def served_model(module: ModuleOp, name: str) -> ServedModel:
    """
    Derives the model from a sequential program: a forward pass, or an inference program
    with prefill and decode. `name` names the program in messages. Raises DistIRError if
    the program is not a decoder with attention layers, or has an unsupported element
    type.
    """
    known = functions(module)
    entry = _entry(known, name)
    roles = argument_roles(entry)
    layers = list(_layers(entry, known))
    if not layers:
        raise DistIRError(
            f"{name} has no op of attention, so that it is no decoder whose steps can be "
            f"priced; build it without --no-fused-attention, or import it with the default "
            f"exporter"
        )
    tables = _tables(entry)
    if not tables:
        raise DistIRError(
            f"{name} looks up no tokens in an embedding: it is no decoder"
        )
    vocab, d_model = shape_of(tables[0])
    mixed = [facts for facts in layers if facts.experts]
    dense = [facts for facts in layers if not facts.experts]
    heads, kv_heads, width = _heads(layers[0].attention)
    widths = [_inside(facts, d_model) for facts in dense]
    gated = any(is_gated for _, is_gated in widths)
    expert_ffn = shared = experts = 0
    if mixed:
        shapes = mixed[0].experts
        experts = shapes[0][0]
        expert_ffn, is_gated = _expert_width(shapes, d_model)
        gated = gated or is_gated
        shared, _ = _inside(mixed[0], d_model)
    dtype = _DTYPES.get(numpy_dtype(element_type(tables[0])).name)
    if dtype is None:
        raise DistIRError(
            f"{name} has parameters of type {element_type(tables[0])}; the steps of a "
            f"service are priced for f32, f16 and bf16"
        )
    positions = next(
        (
            shape_of(a)[0]
            for a, role in zip(entry.body.block.args, roles, strict=True)
            if role == "parameter" and _is_position_table(a, tables[0], d_model)
        ),
        None,
    )
    formats = _formats(entry, known)
    pages = _pages(entry)
    caches = _caches(entry, formats)
    slots = _slots(entry) or max((shape[2] for shape in caches), default=0)
    windowed = [shape[2] for shape in caches if shape[2] < slots]
    sizes = DecoderSizes(
        len(layers),
        d_model,
        heads,
        kv_heads,
        width,
        max((ffn for ffn, _ in widths), default=expert_ffn),
        vocab,
        dtype,
        gated,
        not _has_head(entry, tables[0], vocab),
        len(mixed),
        experts,
        mixed[0].choices if mixed else 0,
        expert_ffn,
        shared,
        positions,
        _latent(layers[0], heads, width, caches),
        max(windowed, default=0),
        # Layers have as many caches each.
        len(layers) * len(windowed) // len(caches) if caches else 0,
        formats,
        pages[1] if pages else 1,
    )
    limits = [(slots, "its cache")] if slots else []
    if pages:
        limits.append((pages[0] * pages[1], "its pool of pages"))
    if positions is not None:
        limits.append((positions, "its table of positions"))
    most, limit = min(limits, default=(None, ""))
    return ServedModel(sizes, most, limit)


def _formats(entry: FuncOp, known: Mapping[str, FuncOp]) -> StepFormats:
    """Returns the element types of matrices in layers and of caches."""
    by_type: dict[Attribute, str] = {
        element: kind for kind, (element, _) in EIGHT_BITS.items()
    }
    roles = argument_roles(entry)
    caches = {
        by_type.get(element_type(a))
        for a, role in zip(entry.args, roles, strict=True)
        if role == "cache"
    }
    weights, group = None, StepFormats().group
    for op in (op for f in known.values() for op in f.body.block.ops):
        if isinstance(op, QuantizedLinearOp):
            weights = by_type[element_type(op.weight)]
        elif isinstance(op, GroupQuantizedLinearOp):
            weights, group = "int4", shape_of(op.x)[-1] // shape_of(op.scale)[1]
    return StepFormats(weights, next(filter(None, caches), None), group)


def _caches(entry: FuncOp, formats: StepFormats) -> list[tuple[int, ...]]:
    """
    Returns the shapes of the caches of keys and values: [batch, heads, tokens, width],
    or for caches in pages [pools, heads, tokens of a sequence, width]. For caches in 8
    bits, only the shapes of the numbers are returned, not of their scales.
    """
    found = list[tuple[int, ...]]()
    narrow = None if formats.cache is None else EIGHT_BITS[formats.cache][0]
    for argument, role in zip(entry.args, argument_roles(entry), strict=True):
        shape = shape_of(argument)
        if role != "cache" or narrow not in (None, element_type(argument)):
            continue
        if len(shape) == 4:
            found.append(shape)
        elif len(shape) == 5:
            pools, _, heads, _, width = shape
            found.append((pools, heads, _slots(entry) or 0, width))
    return found


def _pages(entry: FuncOp) -> tuple[int, int] | None:
    """
    Returns two numbers: the pages in a pool of the cache, and the tokens in a page.
    Returns None for a program without a cache in pages.
    """
    for argument, role in zip(entry.args, argument_roles(entry), strict=True):
        if role == "cache" and len(shape_of(argument)) == 5:
            _, pages, _, size, _ = shape_of(argument)
            return pages, size
    return None


def _slots(entry: FuncOp) -> int | None:
    """
    Returns the largest number of tokens of a sequence in an inference program, or None
    for a forward pass.
    """
    found = [LIMIT.of(attributes) for attributes in argument_attributes(entry)]
    return min((limit for limit in found if limit is not None), default=None)


def _latent(
    facts: _Facts,
    heads: int,
    value_width: int,
    caches: Sequence[tuple[int, ...]],
) -> LatentSizes | None:
    """
    Returns the sizes of latent attention, or None if caches hold the heads of keys and
    values. With latent attention, a layer caches a rotary key and a latent; a matrix
    makes keys and values of all heads from the latent.
    """
    widths = {shape[3] for shape in caches}
    if not caches or heads == 1 or any(shape[1] != 1 for shape in caches):
        return None
    if isinstance(facts.attention, PagedAttentionOp):
        return None  # it reads keys and values, latents are expanded first
    query = shape_of(facts.attention.operands[0])
    if len(query) != 4 or shape_of(facts.attention.operands[1])[1] == 1:
        return None  # one head of keys and values for all queries
    before = [m for m in facts.matrices if m.at < facts.place]
    made = [m for m in before if m.inputs in widths and m.outputs % heads == 0]
    first = [m for m in before if m.outputs == heads * query[3]]
    if not made or not first:
        return None
    rank, inner = made[-1].inputs, made[-1].outputs // heads - value_width
    others = widths - {rank} or {rank}
    inputs = first[-1].inputs
    is_latent = any(m.outputs == inputs for m in before)
    return LatentSizes(rank, max(others), inner, inputs if is_latent else 0)


def _entry(known: Mapping[str, FuncOp], name: str) -> FuncOp:
    """
    Returns the function in which the program starts: `@decode` of an inference program,
    else `@main`. Raises DistIRError if the program has neither function.
    """
    for entry in ("decode", "main"):
        if entry in known:
            return known[entry]
    raise DistIRError(f"{name} has neither @main nor @decode; it is no decoder")


def _executed(function: FuncOp, known: Mapping[str, FuncOp]) -> Iterator[Operation]:
    """
    Yields the ops of a function, and the ops of the functions that it calls, in order
    of execution.
    """
    for op in function.body.block.ops:
        if isinstance(op, CallOp):
            yield from _executed(known[op.callee.string_value()], known)
        else:
            yield op


def _layers(function: FuncOp, known: Mapping[str, FuncOp]) -> Iterator[_Facts]:
    """
    Yields the facts of each attention layer in order of execution. The boundaries of
    called functions do not matter: a function may hold the end of one layer and the
    start of the next one.
    """
    ops = list(_executed(function, known))
    own = [i for i, op in enumerate(ops) if op.name in _ATTENTION]
    if not own:
        return
    matrices = [each for i, op in enumerate(ops) for each in _matrices(op, i)]
    # As many products are in front of the attention of each layer: its projections.
    before = sum(m.at < own[0] for m in matrices)
    for at, following in zip(own, [*own[1:], None], strict=True):
        last = len(ops) if following is None else following
        inside = [m for m in matrices if at < m.at < last]
        if following is not None:
            inside = inside[: len(inside) - before]
        in_front = [m for m in matrices if m.at < at]
        found = [*in_front[len(in_front) - before :], *inside]
        yield _facts(ops[at + 1 : last], ops[at], at, found)


def _matrices(op: Operation, at: int) -> Iterator[_Matrix]:
    """
    Yields the matrix product of `op`, the op with index `at`. Yields nothing if `op` is
    not a product with a parameter.
    """
    if isinstance(op, QuantizedLinearOp | GroupQuantizedLinearOp):
        yield _Matrix(shape_of(op.x)[-1], shape_of(op.y)[-1], at)
    elif op.name in ("onnx.MatMul", "onnx.Gemm"):
        weight, is_turned = _weight(op.operands[1])
        if weight is not None and len(shape_of(weight)) == 2:
            a, b = shape_of(weight)
            yield _Matrix(b, a, at) if is_turned else _Matrix(a, b, at)


def _facts(
    after: Sequence[Operation],
    attention: Operation,
    at: int,
    matrices: Sequence[_Matrix],
) -> _Facts:
    """
    Returns the facts of the layer that has the attention op `attention`, with index
    `at`. `after` are the ops up to the attention of the next layer, and `matrices` the
    products of the layer.
    """
    experts, choices = list[tuple[int, ...]](), 0
    for op in after:
        if op.name == "onnx.TopK":
            choices = shape_of(op.results[0])[-1]
        if op.name in _VIEWS:
            continue
        for operand in op.operands:
            if _weight(operand)[0] is not None and len(shape_of(operand)) == 3:
                experts.append(shape_of(operand))
    return _Facts(attention, at, matrices, experts, choices)


def _weight(value: SSAValue) -> tuple[BlockArgument | None, bool]:
    """
    Returns the parameter behind `value`, through transposes, identities and conversions
    of quantised weights, and whether it is transposed. Returns None and False if `value`
    is not computed from a parameter in this way.
    """
    is_turned = False
    while isinstance(value.owner, Operation) and value.owner.name in _VIEWS:
        is_turned ^= value.owner.name == "onnx.Transpose"
        value = value.owner.operands[0]
    if not isinstance(value, BlockArgument) or not isinstance(value.type, TensorType):
        return None, False
    function = value.owner.parent_op()
    if not isinstance(function, FuncOp):
        return None, False
    is_weight = argument_roles(function)[value.index] == "parameter"
    return (value, is_turned) if is_weight else (None, False)


def _heads(op: Operation) -> tuple[int, int, int]:
    """
    Returns the number of query heads, the number of key-value heads, and the width of a
    value head.
    """
    q, k, v = (shape_of(value) for value in op.operands[:3])
    if isinstance(op, PagedAttentionOp):
        return q[1], op.sizes.heads, v[4]
    if len(q) == 4:
        return q[1], k[1], v[3]
    properties = {**op.properties, **op.attributes}
    heads, kv_heads = (
        int(properties[name].value.data)  # pyright: ignore
        for name in ("q_num_heads", "kv_num_heads")
    )
    return heads, kv_heads, v[2] // kv_heads


def _inside(facts: _Facts, d_model: int) -> tuple[int, bool]:
    """
    Returns the inner width of the MLP after a layer's attention, and whether the MLP is
    gated; the width is 0 without an MLP. The first product after attention is not
    counted, because it is the output projection of attention.
    """
    behind = [m for m in facts.matrices if m.at > facts.place][1:]
    experts = facts.experts[0][0] if facts.experts else 0
    up = [m.outputs for m in behind if m.inputs == d_model and m.outputs != experts]
    down = [m for m in behind if m.outputs == d_model]
    if not up or not down:
        return 0, False
    inside = down[-1].inputs
    # Both matrices of a gated MLP, or one that holds both.
    return inside, up.count(inside) > 1 or 2 * inside in up


def _expert_width(shapes: Sequence[tuple[int, ...]], d_model: int) -> tuple[int, bool]:
    """
    Returns the inner width of an expert, and whether experts are gated. `shapes` are
    the shapes of the experts' parameters.
    """
    others = [max(a, b) if d_model in (a, b) else b for _, a, b in shapes]
    inside = [b if a == d_model else a for _, a, b in shapes]
    least = min(inside)
    return least, len(others) > 2 or max(inside) == 2 * least


def _tables(entry: FuncOp) -> list[BlockArgument]:
    """
    Returns the parameters in which the program looks up token ids that it takes as
    input.
    """
    found = list[BlockArgument]()
    for op in entry.body.block.ops:
        if op.name != "onnx.Gather":
            continue
        weight, _ = _weight(op.operands[0])
        ids = op.operands[1]
        if weight is not None and isinstance(ids, BlockArgument):
            found.append(weight)
    return found


def _is_position_table(value: SSAValue, table: SSAValue, d_model: int) -> bool:
    """
    Whether an argument is a table of learned positions: a matrix of width `d_model`,
    other than the token embedding `table`, that the program adds, looks up or slices.
    """
    shape = shape_of(value)
    if value is table or len(shape) != 2 or shape[1] != d_model:
        return False
    users = {use.operation.name for use in value.uses}
    return bool(users & {"onnx.Add", "onnx.Gather", "onnx.Slice"})


def _has_head(entry: FuncOp, table: SSAValue, vocab: int) -> bool:
    """Whether a matrix other than the embedding `table` computes the logits."""
    for op in entry.body.block.ops:
        if op.name in ("onnx.MatMul", "onnx.Gemm"):
            weight, _ = _weight(op.operands[1])
            if weight is not None and weight is not table and vocab in shape_of(weight):
                return True
    return False
