"""
Sequential programs of any size without weights: the models of DistIR's Table 1.

A layer is one function that `@main` calls once a layer, so that the size of a program
does not grow with that of the model. The ops of a layer have scopes like
`transformer.h.*.attn`, its calls `transformer.h.0`, as after `outline-repeats`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    BFloat16Type,
    DictionaryAttr,
    Float16Type,
    Float32Type,
    ModuleOp,
    StringAttr,
    TensorType,
    i1,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue, TypeAttribute

from distir.dialects.dist import NAME, ROLE, SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_values import numpy_dtype
from distir.dialects.train_ops.dropout import DropoutOp
from distir.dialects.train_ops.optimizers import STEP
from distir.errors import DistIRError
from distir.program import ENTRY, set_argument_attributes

DTYPES: dict[str, TypeAttribute] = {
    "f16": Float16Type(),
    "bf16": BFloat16Type(),
    "f32": Float32Type(),
}
"""The element types a model can be built with, by name."""

LAYER = "layer"
"""The symbol of the function of one layer."""

EMBEDDING_STREAM, ATTENTION_STREAM, ATTENTION_OUTPUT_STREAM, MLP_OUTPUT_STREAM = range(
    4
)
"""The streams of random numbers of a GPT's dropouts."""

Shape = Sequence[int]


def build_mlp(layers: int, d_model: int, batch: int, dtype: str = "f32") -> ModuleOp:
    """
    `layers` fully connected layers of `d_model` units with ReLU, on `batch` samples.
    The weights have the shape [inputs, outputs]. Raises DistIRError.
    """
    _check_sizes(layers=layers, d_model=d_model, batch=batch)
    element = _element(dtype)
    parameters = [("weight", (d_model, d_model)), ("bias", (d_model,))]

    layer = _FunctionBuilder(element)
    x = layer.argument("input", (batch, d_model), role=None)
    weight, bias = (
        layer.argument(f"layers.*.{name}", shape) for name, shape in parameters
    )
    layer.scope = "layers.*"
    h = layer.op("Gemm", [x, weight, bias], (batch, d_model))
    layer_function = layer.finish(LAYER, [layer.op("Relu", [h], (batch, d_model))])

    main = _FunctionBuilder(element)
    h = main.argument("input", (batch, d_model), role="input")
    arguments = _layer_arguments(main, "layers", layers, parameters)
    for index in range(layers):
        h = main.call(layer_function, f"layers.{index}", [h, *arguments[index]])
    return ModuleOp([main.finish(ENTRY, [h], ["output"]), layer_function])


def build_gpt(
    layers: int,
    d_model: int,
    heads: int,
    vocab: int,
    batch: int,
    seq: int,
    dtype: str = "f32",
    *,
    tied: bool = True,
    dropout: float = 0.0,
    seed: int = 0,
    fused_attention: bool = False,
) -> ModuleOp:
    """
    The forward pass of GPT-2 from token ids [batch, seq] to logits [batch, seq, vocab]:
    learned positions, layer norm before attention and MLP, one matrix for query, key
    and value, causal attention, GELU. `tied` uses the embedding as the output matrix.
    `dropout` is the ratio of elements set to zero, with random numbers of that seed, in
    the embeddings, the attention probabilities and both residual branches of a layer;
    the program then takes the number of steps done before as its last argument.
    `fused_attention` has the attention of a layer as one op, without dropout. The names
    of the parameters are those of Hugging Face's GPT-2. Raises DistIRError.
    """
    _check_sizes(
        layers=layers, d_model=d_model, heads=heads, vocab=vocab, batch=batch, seq=seq
    )
    if d_model % heads:
        raise DistIRError(
            f"{heads} heads do not divide the model width {d_model}; choose a number of "
            "heads that does"
        )
    if not 0 <= dropout < 1 or not 0 <= seed < 2**32:
        raise DistIRError(
            f"dropout is {dropout} and its seed {seed}; expected a ratio of at least 0 "
            f"and less than 1, and a seed of 32 bits"
        )
    if fused_attention and dropout:
        raise DistIRError(
            "fused attention has no dropout; build the model with one of them"
        )
    element = _element(dtype)
    layer_function = _gpt_layer(
        element, d_model, heads, batch, seq, (dropout, seed), fused_attention
    )
    main = _FunctionBuilder(element, (dropout, seed))
    tokens = main.argument("input_ids", (batch, seq), role="input", element=i64)
    wte = main.argument("transformer.wte.weight", (vocab, d_model))
    wpe = main.argument("transformer.wpe.weight", (seq, d_model))
    arguments = _layer_arguments(
        main, "transformer.h", layers, _gpt_layer_parameters(d_model)
    )
    norm = [
        main.argument(f"transformer.ln_f.{n}", (d_model,)) for n in ("weight", "bias")
    ]
    head = wte if tied else main.argument("lm_head.weight", (vocab, d_model))
    step = None
    if dropout:
        step = main.argument(STEP, (), role="state", element=i64)

    hidden = (batch, seq, d_model)
    main.scope = "transformer"
    mask = [] if fused_attention else [_causal_mask(main, seq)]
    main.scope = "transformer.wte"
    h = main.op("Gather", [wte, tokens], hidden)
    main.scope = "transformer.wpe"
    h = main.op("Add", [h, wpe], hidden)
    main.scope = "transformer.drop"
    h = main.dropout(h, step, EMBEDDING_STREAM)
    for index in range(layers):
        main.scope = scope = f"transformer.h.{index}"
        counter = [] if step is None else [main.call_counter(step, layers, index)]
        h = main.call(layer_function, scope, [h, *mask, *counter, *arguments[index]])
    main.scope = "transformer.ln_f"
    h = main.layer_norm(h, norm, hidden)
    main.scope = "lm_head"
    head = main.op("Transpose", [head], (d_model, vocab), perm=[1, 0])
    logits = main.op("MatMul", [h, head], (batch, seq, vocab))
    return ModuleOp([main.finish(ENTRY, [logits], ["logits"]), layer_function])


def _gpt_layer_parameters(d_model: int) -> list[tuple[str, Shape]]:
    vector = (d_model,)
    return [
        ("ln_1.weight", vector),
        ("ln_1.bias", vector),
        ("attn.c_attn.weight", (d_model, 3 * d_model)),
        ("attn.c_attn.bias", (3 * d_model,)),
        ("attn.c_proj.weight", (d_model, d_model)),
        ("attn.c_proj.bias", vector),
        ("ln_2.weight", vector),
        ("ln_2.bias", vector),
        ("mlp.c_fc.weight", (d_model, 4 * d_model)),
        ("mlp.c_fc.bias", (4 * d_model,)),
        ("mlp.c_proj.weight", (4 * d_model, d_model)),
        ("mlp.c_proj.bias", vector),
    ]


def _gpt_layer(
    element: TypeAttribute,
    d_model: int,
    heads: int,
    batch: int,
    seq: int,
    dropout: tuple[float, int],
    fused: bool,
) -> FuncOp:
    """(hidden, mask unless attention is fused, counter of calls, parameters of the layer...) -> hidden."""
    b = _FunctionBuilder(element, dropout)
    hidden = (batch, seq, d_model)
    x = b.argument("hidden", hidden, role=None)
    mask = None if fused else b.argument("mask", (seq, seq), role=None)
    counter = None
    if b.ratio:
        counter = b.argument("counter", (), role=None, element=i64)
    p = {
        name: b.argument(f"transformer.h.*.{name}", shape)
        for name, shape in _gpt_layer_parameters(d_model)
    }

    def linear(name: str, value: SSAValue, outputs: int) -> SSAValue:
        b.scope = f"transformer.h.*.{name}"
        shape = (batch, seq, outputs)
        product = b.op("MatMul", [value, p[f"{name}.weight"]], shape)
        return b.op("Add", [product, p[f"{name}.bias"]], shape)

    def norm(name: str, value: SSAValue) -> SSAValue:
        b.scope = f"transformer.h.*.{name}"
        return b.layer_norm(value, [p[f"{name}.weight"], p[f"{name}.bias"]], hidden)

    qkv = linear("attn.c_attn", norm("ln_1", x), 3 * d_model)
    b.scope = "transformer.h.*.attn"
    sizes = (batch, seq, heads, d_model // heads)
    attended = _attention(b, qkv, mask, counter, sizes)
    projected = linear("attn.c_proj", attended, d_model)
    b.scope = "transformer.h.*.attn.resid_dropout"
    projected = b.dropout(projected, counter, ATTENTION_OUTPUT_STREAM)
    b.scope = "transformer.h.*"
    x = b.op("Add", [projected, x], hidden)
    h = linear("mlp.c_fc", norm("ln_2", x), 4 * d_model)
    b.scope = "transformer.h.*.mlp.act"
    h = b.op("Gelu", [h], (batch, seq, 4 * d_model), approximate="tanh")
    h = linear("mlp.c_proj", h, d_model)
    b.scope = "transformer.h.*.mlp.dropout"
    h = b.dropout(h, counter, MLP_OUTPUT_STREAM)
    b.scope = "transformer.h.*"
    return b.finish(LAYER, [b.op("Add", [x, h], hidden)])


def _attention(
    b: _FunctionBuilder,
    qkv: SSAValue,
    mask: SSAValue | None,
    counter: SSAValue | None,
    sizes: tuple[int, int, int, int],
) -> SSAValue:
    """
    Causal self-attention of (batch, seq, heads, width of a head) on [b, s, 3hw]; one op
    without a mask.
    """
    batch, seq, heads, width = sizes
    merged = (batch, seq, heads * width)
    split = b.constant(np.full(3, heads * width, np.int64))
    parts = b.ops("Split", [qkv, split], [merged] * 3, axis=2)
    if mask is None:
        return b.op(
            "Attention",
            parts,
            merged,
            q_num_heads=heads,
            kv_num_heads=heads,
            is_causal=1,
        )
    by_head = b.constant(np.array([0, 0, -1, width]))
    q, k, v = (b.op("Reshape", [part, by_head], sizes) for part in parts)
    q = b.op("Transpose", [q], (batch, heads, seq, width), perm=[0, 2, 1, 3])
    k = b.op("Transpose", [k], (batch, heads, width, seq), perm=[0, 2, 3, 1])
    v = b.op("Transpose", [v], (batch, heads, seq, width), perm=[0, 2, 1, 3])
    square = (batch, heads, seq, seq)
    scale = b.constant(np.array(1 / math.sqrt(width), b.dtype))
    scores = b.op("Mul", [b.op("MatMul", [q, k], square), scale], square)
    scores = b.op("Add", [scores, mask], square)
    weights = b.op("Softmax", [scores], square, axis=-1)
    weights = b.dropout(weights, counter, ATTENTION_STREAM)
    h = b.op("MatMul", [weights, v], (batch, heads, seq, width))
    h = b.op("Transpose", [h], sizes, perm=[0, 2, 1, 3])
    return b.op("Reshape", [h, b.constant(np.array([0, 0, -1]))], merged)


def _causal_mask(b: _FunctionBuilder, seq: int) -> SSAValue:
    """[seq, seq]: 0 where the key is not after the query, else the lowest number."""
    import ml_dtypes

    ends = [b.constant(np.array(v, np.int64)) for v in (0, seq, 1)]
    positions = b.op("Range", ends, (seq,), element=i64)
    column = b.constant(np.array([1], np.int64))
    queries = b.op("Unsqueeze", [positions, column], (seq, 1), element=i64)
    seen = b.op("LessOrEqual", [positions, queries], (seq, seq), element=i1)
    zero = b.constant(np.array(0, b.dtype))
    lowest = b.constant(np.array(ml_dtypes.finfo(b.dtype).min, b.dtype))
    return b.op("Where", [seen, zero, lowest], (seq, seq))


def _layer_arguments(
    main: _FunctionBuilder,
    scope: str,
    layers: int,
    parameters: Iterable[tuple[str, Shape]],
) -> list[list[SSAValue]]:
    """Arguments of `@main` for the parameters of every layer, layer by layer."""
    parameters = list(parameters)
    return [
        [main.argument(f"{scope}.{index}.{name}", shape) for name, shape in parameters]
        for index in range(layers)
    ]


class _FunctionBuilder:
    """
    Appends ops to one function. `scope` is the scope of the ops that follow, `dropout`
    the ratio and the seed of dropout.
    """

    def __init__(self, element: TypeAttribute, dropout: tuple[float, int] = (0.0, 0)):
        self.element = element
        self.ratio, self.seed = dropout
        self.dtype = numpy_dtype(element)
        self.scope = ""
        self.block = Block()
        self.attributes: list[dict[str, Attribute]] = []
        # Types are compared and built often; one object per type keeps both cheap.
        self.types: dict[tuple[TypeAttribute, tuple[int, ...]], TensorType[Any]] = {}

    def type(
        self, shape: Shape, element: TypeAttribute | None = None
    ) -> TensorType[Any]:
        key = (element or self.element, tuple(shape))
        if key not in self.types:
            self.types[key] = TensorType(*key)
        return self.types[key]

    def argument(
        self,
        name: str,
        shape: Shape,
        *,
        role: str | None = "parameter",
        element: TypeAttribute | None = None,
    ) -> SSAValue:
        """A new last argument. One without a role is an intermediate value."""
        value = self.block.insert_arg(self.type(shape, element), len(self.block.args))
        value.name_hint = name.replace(".*", "")
        attributes: dict[str, Attribute] = {}
        if role is not None:
            attributes = {ROLE: StringAttr(role), NAME: StringAttr(name)}
        self.attributes.append(attributes)
        return value

    def ops(
        self,
        name: str,
        inputs: Sequence[SSAValue],
        shapes: Sequence[Shape],
        **attributes: Any,
    ) -> Sequence[SSAValue]:
        """An op with one result for each shape."""
        return self._append(name, inputs, [self.type(s) for s in shapes], attributes)

    def op(
        self,
        name: str,
        inputs: Sequence[SSAValue],
        shape: Shape,
        element: TypeAttribute | None = None,
        **attributes: Any,
    ) -> SSAValue:
        """An op with one result."""
        return self._append(name, inputs, [self.type(shape, element)], attributes)[0]

    def _append(
        self,
        name: str,
        inputs: Sequence[SSAValue],
        types: Sequence[Attribute],
        attributes: dict[str, Any],
    ) -> Sequence[SSAValue]:
        scope = {SCOPE: StringAttr(self.scope)} if self.scope else None
        op = operator(name).build_op(inputs, types, attributes, scope)
        self.block.add_op(op)
        return op.results

    def constant(self, array: np.ndarray[Any, Any]) -> SSAValue:
        element = i64 if array.dtype == np.int64 else self.element
        return self.op("Constant", [], array.shape, element, value=array)

    def layer_norm(
        self, value: SSAValue, parameters: Sequence[SSAValue], shape: Shape
    ) -> SSAValue:
        return self.op(
            "LayerNormalization", [value, *parameters], shape, axis=-1, epsilon=1e-5
        )

    def dropout(
        self, value: SSAValue, counter: SSAValue | None, stream: int
    ) -> SSAValue:
        """The value after dropout; the value itself where there is no counter."""
        if counter is None:
            return value
        op = DropoutOp(value, counter, ratio=self.ratio, seed=self.seed, stream=stream)
        op.attributes[SCOPE] = StringAttr(self.scope)
        self.block.add_op(op)
        return op.y

    def call_counter(self, step: SSAValue, calls: int, index: int) -> SSAValue:
        """A number for one of the calls of a function in a step: another one for each."""
        count, own = (self.constant(np.array(n, np.int64)) for n in (calls, index))
        before = self.op("Mul", [step, count], (), i64)
        return self.op("Add", [before, own], (), i64)

    def call(
        self, callee: FuncOp, scope: str, arguments: Sequence[SSAValue]
    ) -> SSAValue:
        """A call of a function with one result."""
        results = callee.function_type.outputs.data
        call = CallOp(callee.sym_name.data, arguments, results)
        call.attributes[SCOPE] = StringAttr(scope)
        self.block.add_op(call)
        return call.results[0]

    def finish(
        self, name: str, results: Sequence[SSAValue], names: Sequence[str] = ()
    ) -> FuncOp:
        """The function; it is private unless its results have source names."""
        self.block.add_op(ReturnOp(*results))
        function = FuncOp(
            name,
            (self.block.arg_types, [r.type for r in results]),
            Region(self.block),
            None if names else "private",
        )
        set_argument_attributes(function, self.attributes)
        if names:
            function.res_attrs = ArrayAttr(
                [DictionaryAttr({NAME: StringAttr(n)}) for n in names]
            )
        return function


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise DistIRError(f"{name} is {size}; a model needs at least 1")


def _element(dtype: str) -> TypeAttribute:
    if dtype not in DTYPES:
        raise DistIRError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[dtype]
