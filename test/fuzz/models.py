"""Random small models that can be trained: layers with skips, functions, shared weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.random_programs import Draw
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32, i1, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from distir.frontends.models.basic import build_gpt, build_mlp, build_moe
from distir.frontends.models.function_builder import FunctionBuilder
from distir.passes.differentiate import DifferentiatePass

Shape = tuple[int, ...]
_ACTIVATIONS = "Relu Tanh Sigmoid Gelu Elu Softplus LeakyRelu Erf Swish Mish HardSwish Selu Identity"
ACTIVATIONS = _ACTIVATIONS.split()


@dataclass
class Layers:
    """
    Appends layers to a function, each from and to [batch, seq, width]. In a function that
    is called for every layer, parameters are its arguments without roles.
    """

    draw: Draw
    builder: FunctionBuilder
    shape: Shape
    role: str | None = "parameter"
    scope: str = "layers.0"
    parameters: list[tuple[str, Shape]] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)

    def parameter(self, name: str, shape: Shape) -> SSAValue:
        name = f"{self.scope}.{name}{next(self._numbers)}"
        self.parameters.append((name, shape))
        return self.builder.argument(name, shape, role=self.role)

    def op(
        self, name: str, inputs: Sequence[SSAValue], shape: Shape, **attributes: Any
    ) -> SSAValue:
        return self.builder.op(name, inputs, shape, **attributes)

    def linear(self, x: SSAValue, width: int | None = None) -> SSAValue:
        *rows, inside = self.shape
        width = width or inside
        w = self.parameter("weight", (inside, width))
        y = self.op("MatMul", [x, w], (*rows, width))
        if self.draw(st.booleans()):
            y = self.op("Add", [y, self.parameter("bias", (width,))], (*rows, width))
        return y

    def activation(self, x: SSAValue) -> SSAValue:
        return self.op(self.draw(st.sampled_from(ACTIVATIONS)), [x], self.shape)

    def perceptron(self, x: SSAValue) -> SSAValue:
        *rows, inside = self.shape
        wide = (*rows, 2 * inside)
        name = self.draw(st.sampled_from(ACTIVATIONS))
        h = self.op(name, [self.linear(x, 2 * inside)], wide)
        w = self.parameter("projection", (2 * inside, inside))
        return self.op("MatMul", [h, w], self.shape)

    def gate(self, x: SSAValue) -> SSAValue:
        y = self.op("Sigmoid", [self.linear(x)], self.shape)
        return self.op("Mul", [y, self.linear(x)], self.shape)

    def norm(self, x: SSAValue) -> SSAValue:
        width = self.shape[-1:]
        if self.draw(st.booleans()):
            weights = [self.parameter("scale", width), self.parameter("bias", width)]
            name = "LayerNormalization"
        else:
            weights, name = [self.parameter("scale", width)], "RMSNormalization"
        return self.op(name, [x, *weights], self.shape, axis=-1, epsilon=0.1)

    def attention(self, x: SSAValue) -> SSAValue:
        batch, seq, _width = self.shape
        q, k, v = (self.linear(x) for _ in range(3))
        if self.draw(st.booleans()):
            heads = self.draw(st.sampled_from([1, 2, 4]))
            return self.op(
                *("Attention", [q, k, v], self.shape),
                q_num_heads=heads,
                kv_num_heads=heads,
                is_causal=int(self.draw(st.booleans())),
            )
        scores = self.op("Einsum", [q, k], (batch, seq, seq), equation="bik,bjk->bij")
        weights = self.op("Softmax", [scores], (batch, seq, seq), axis=-1)
        return self.op("MatMul", [weights, v], self.shape)

    def heads(self, x: SSAValue) -> SSAValue:
        """Dimensions split, moved, multiplied and merged."""
        batch, seq, width = self.shape
        heads = self.draw(st.sampled_from([2, 4]))
        split = (batch, seq, heads, width // heads)
        sizes = self.builder.constant(np.array(split))
        y = self.op("Reshape", [x, sizes], split)
        moved = (batch, heads, seq, width // heads)
        y = self.op("Transpose", [y], moved, perm=[0, 2, 1, 3])
        w = self.parameter("weight", (heads, width // heads, width // heads))
        y = self.op("MatMul", [y, w], moved)
        y = self.op("Transpose", [y], split, perm=[0, 2, 1, 3])
        sizes = self.builder.constant(np.array(self.shape))
        return self.op("Reshape", [y, sizes], self.shape)

    def convolution(self, x: SSAValue) -> SSAValue:
        batch, seq, width = self.shape
        columns = (batch, width, seq)
        group = self.draw(st.sampled_from([1, 2, width]))
        y = self.op("Transpose", [x], columns, perm=[0, 2, 1])
        w = self.parameter("kernel", (width, width // group, 3))
        y = self.op("Conv", [y, w], columns, pads=[1, 1], group=group)
        return self.op("Transpose", [y], self.shape, perm=[0, 2, 1])

    def mixing(self, x: SSAValue) -> SSAValue:
        """Along the sequence."""
        w = self.parameter("weight", (self.shape[1], self.shape[1]))
        return self.op("Einsum", [x, w], self.shape, equation="bsw,st->btw")

    def pooling(self, x: SSAValue) -> SSAValue:
        batch, _, width = self.shape
        axes = self.builder.constant(np.array([1]))
        name = self.draw(st.sampled_from(["ReduceMean", "ReduceSum", "ReduceMax"]))
        pooled = self.op(name, [x, axes], (batch, 1, width), keepdims=1)
        return self.op("Sub", [x, pooled], self.shape)

    def halves(self, x: SSAValue) -> SSAValue:
        """Two parts, one of them changed, joined the other way round."""
        axis = self.draw(st.sampled_from([1, 2]))
        half = tuple(n // 2 if i == axis else n for i, n in enumerate(self.shape))
        a, b = self.builder.ops("Split", [x], [half, half], axis=axis, num_outputs=2)
        return self.op("Concat", [self.op("Tanh", [b], half), a], self.shape, axis=axis)

    def scaled(self, x: SSAValue) -> SSAValue:
        """By a parameter that broadcasts, or by a constant."""
        if self.draw(st.booleans()):
            shape = self.draw(
                st.sampled_from([(), (1,), self.shape[-1:], self.shape[1:]])
            )
            return self.op("Mul", [x, self.parameter("scale", shape)], self.shape)
        constant = self.builder.constant(np.array(0.5, np.float32))
        return self.op("Mul", [x, constant], self.shape)

    def softmax(self, x: SSAValue) -> SSAValue:
        axis = self.draw(st.sampled_from([1, 2]))
        name = self.draw(st.sampled_from(["Softmax", "LogSoftmax"]))
        return self.op(name, [x], self.shape, axis=axis)

    def any(self, x: SSAValue) -> SSAValue:
        """A random one of these, or two with a residual connection around them."""
        y = self.draw(st.sampled_from(KINDS))(self, x)
        if self.draw(st.booleans()):
            y = self.draw(st.sampled_from(KINDS))(self, y)
        if self.draw(st.booleans()):
            y = self.op("Add", [x, y], self.shape)
        return y


KINDS: list[Callable[[Layers, SSAValue], SSAValue]] = [
    Layers.linear,
    Layers.activation,
    Layers.perceptron,
    Layers.gate,
    Layers.norm,
    Layers.attention,
    Layers.heads,
    Layers.convolution,
    Layers.mixing,
    Layers.pooling,
    Layers.halves,
    Layers.scaled,
    Layers.softmax,
]


def _repeated(draw: Draw, name: str, shape: Shape) -> tuple[FuncOp, list[Any]]:
    """A function of one layer, and its parameters' names and shapes."""
    builder = FunctionBuilder(f32)
    x = builder.argument("input", shape, role=None)
    layer = Layers(draw, builder, shape, None, "layers.*")
    y = layer.any(x)
    results = [y]
    if layer.parameters and draw(st.integers(0, 3)) == 0:
        # A result that does not depend on the batch.
        index = draw(st.integers(1, len(layer.parameters)))
        _, sizes = layer.parameters[index - 1]
        results.append(builder.op("Tanh", [builder.block.args[index]], sizes))
    if draw(st.integers(0, 5)) == 0:
        builder.argument("layers.*.unused", (2,), role=None)
        layer.parameters.append(("layers.*.unused", (2,)))
    return builder.finish(name, results), layer.parameters


def _called(
    draw: Draw,
    builder: FunctionBuilder,
    function: FuncOp,
    parameters: Sequence[tuple[str, Shape]],
    scope: str,
    x: SSAValue,
    known: dict[Any, SSAValue],
) -> SSAValue:
    """A call with parameters of its own, or those of an earlier call."""
    arguments: list[SSAValue] = []
    for name, shape in parameters:
        key = (function, name)
        if key not in known or draw(st.integers(0, 3)):
            known[key] = builder.argument(name.replace("layers.*", scope), shape)
        arguments.append(known[key])
    y, *others = builder.calls(function, scope, [x, *arguments])
    shape = y.type.get_shape()  # type: ignore[attr-defined]
    for other in others:
        total = builder.op("ReduceSum", [other], (), keepdims=0)
        y = builder.op("Add", [y, total], shape)
    return y


def _start(draw: Draw, builder: FunctionBuilder, shape: Shape) -> SSAValue:
    """Numbers, or tokens whose rows of a table are looked up."""
    if draw(st.booleans()):
        return builder.argument("input", shape, role="input")
    ids = builder.argument("ids", shape[:2], role="input", element=i64)
    table = builder.argument("embedding.weight", (8, shape[-1]))
    return builder.op("Gather", [table, ids], shape, axis=0)


def layered_model(draw: Draw) -> tuple[ModuleOp, str]:
    """A forward pass of random layers, and the loss that fits its result."""
    batch = draw(st.sampled_from([4, 8, 12, 6]))
    shape = (batch, draw(st.sampled_from([4, 2, 6])), draw(st.sampled_from([4, 8])))
    functions = [
        _repeated(draw, f"layer{i}", shape) for i in range(draw(st.integers(0, 2)))
    ]
    builder = FunctionBuilder(f32)
    values = [_start(draw, builder, shape)]
    known: dict[Any, SSAValue] = {}
    for index in range(draw(st.integers(1, 4))):
        builder.scope = f"layers.{index}"
        x = values[-1]
        if draw(st.integers(0, 4)) == 0:
            x = draw(st.sampled_from(values))
        if functions and draw(st.booleans()):
            function, parameters = draw(st.sampled_from(functions))
            scope = f"layers.{index}"
            values.append(_called(draw, builder, function, parameters, scope, x, known))
            continue
        layers = Layers(draw, builder, shape, scope=builder.scope)
        values.append(layers.any(x))
        if draw(st.integers(0, 3)) == 0:  # a skip connection from any earlier layer
            skip = draw(st.sampled_from(values))
            values.append(builder.op("Add", [values[-1], skip], shape))
        if draw(st.integers(0, 5)) == 0:
            mask = builder.argument(
                f"mask{index}", (*shape[:2], 1), role="input", element=i1
            )
            zero = builder.constant(np.array(0.0, np.float32))
            values.append(builder.op("Where", [mask, values[-1], zero], shape))
    builder.scope = "head"
    classes = draw(st.sampled_from([4, 6, 8]))
    head = builder.argument("head.weight", (shape[-1], classes))
    y = builder.op("MatMul", [values[-1], head], (*shape[:2], classes))
    main = builder.finish("main", [y], ["output"])
    module = ModuleOp([main, *(function for function, _ in functions)])
    module.verify()
    return module, draw(st.sampled_from(["mse", "cross_entropy"]))


def built_model(draw: Draw) -> tuple[ModuleOp, str]:
    """A model of `distir build`."""
    kind = draw(st.sampled_from(["mlp", "mlp", "gpt", "gpt", "gpt", "moe"]))
    layers = draw(st.sampled_from([1, 2, 2, 3]))
    batch = draw(st.sampled_from([4, 8]))
    if kind == "mlp":
        return build_mlp(layers + 1, d_model=8, batch=batch), "mse"
    sizes = {"d_model": 8, "heads": draw(st.sampled_from([2, 4])), "vocab": 8}
    sizes |= {"batch": batch, "seq": 4}
    tied = draw(st.booleans())
    if kind == "moe":
        return build_moe(2, experts=2, tied=tied, **sizes), "cross_entropy"
    fused = draw(st.booleans())
    module = build_gpt(
        layers,
        **sizes,
        tied=tied,
        fused_attention=fused,
        dropout=0.0 if fused else draw(st.sampled_from([0.0, 0.25])),
    )
    return module, "cross_entropy"


def differentiate(draw: Draw, loss: str) -> DifferentiatePass:
    """How a model is trained."""
    return DifferentiatePass(
        loss=loss,
        optimizer=draw(st.sampled_from(["none", "sgd", "adam", "adamw"])),
        momentum=draw(st.sampled_from([0.0, 0.9])),
        weight_decay=draw(st.sampled_from([None, 0.0, 0.1])),
        clip=draw(st.sampled_from([0.0, 0.0, 0.5])),
        dropout_masks=draw(st.sampled_from(["drawn", "stored"])),
        ignore_index=draw(st.sampled_from([None, 1])) if loss != "mse" else None,
    )


def differentiate_with(module: ModuleOp, **options: Any) -> None:
    """Makes a training step of a model."""
    DifferentiatePass(**options).apply(Context(), module)
