"""
Appends modules with the names and shapes of PyTorch's modules to a function, for the
builders of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.function_builder import (
    FunctionBuilder,
    Layer,
    Parameter,
    Shape,
)


class ModuleBuilder(FunctionBuilder):
    """
    Appends modules to one function.

    The name of a module, relative to `root`, is the scope of the module's ops and the
    prefix of its parameters' names. A parameter has the same shape as in PyTorch; it is
    appended to the function's arguments when it is first used. With `trains`, modules
    behave as in training mode.
    """

    def __init__(self, element: TypeAttribute, root: str = "", trains: bool = False):
        super().__init__(element)
        self.trains = trains
        self.root = root
        self.scope = root
        self.own: list[Parameter] = []

    def at(self, name: str = "") -> Self:
        """
        Sets the module of the ops that are added next to `name`, or to the root if
        `name` is "". Returns this builder.
        """
        self.scope = self.path(name)
        return self

    def path(self, name: str) -> str:
        """Returns the full name of a module or parameter: `name` under the root."""
        return ".".join(part for part in (self.root, name) if part)

    def parameter(
        self,
        name: str,
        shape: Shape,
        initial: str | None = None,
        role: str = "parameter",
        element: TypeAttribute | None = None,
    ) -> SSAValue:
        """
        Adds a weight to the function's arguments and returns it. `initial` is the value
        of the attribute `dist.initial`. `element` is the element type, by default the
        element type of the model.
        """
        wanted = Parameter(name, tuple(shape), initial, role, element)
        self.own.append(wanted)
        return self.parameters(self.root, [wanted])[0]

    def integers(self, *values: int) -> SSAValue:
        """Adds a constant vector of the integers `values`, and returns it."""
        return self.constant(np.array(values, np.int64))

    def elementwise(self, name: str, *values: SSAValue, **attributes: Any) -> SSAValue:
        """
        Adds the ONNX op `name` on values that broadcast to one shape, and returns its
        result.
        """
        shape = np.broadcast_shapes(*map(shape_of, values))
        return self.op(name, values, shape, **attributes)

    def reshape(self, value: SSAValue, shape: Shape) -> SSAValue:
        """
        Returns `value` in the shape `shape`. The op copies the sizes that stay at the
        same position and infers the last size that changes. It therefore also works on
        a part of the batch.
        """
        old = shape_of(value)
        wanted = [
            0 if i < len(old) and size == old[i] else size
            for i, size in enumerate(shape)
        ]
        others = [i for i, size in enumerate(wanted) if size]
        if others:
            wanted[others[-1]] = -1
        return self.op("Reshape", [value, self.integers(*wanted)], shape)

    def transpose(self, value: SSAValue, *order: int) -> SSAValue:
        """Returns `value` with its dimensions permuted to `order`."""
        shape = [shape_of(value)[dim] for dim in order]
        return self.op("Transpose", [value], shape, perm=list(order))

    def product(self, value: SSAValue, weight: SSAValue) -> SSAValue:
        """Returns `value` times the transpose of `weight`, [outputs, inputs]."""
        shape = (*shape_of(value)[:-1], shape_of(weight)[0])
        return self.op("MatMul", [value, self.transpose(weight, 1, 0)], shape)

    def linear(
        self, name: str, value: SSAValue, outputs: int, bias: bool = True
    ) -> SSAValue:
        """
        Adds a `torch.nn.Linear` with a weight [outputs, inputs] and, if `bias`, a bias.
        Returns its result.
        """
        b, inputs = self.at(name), shape_of(value)[-1]
        result = b.product(value, b.parameter(f"{name}.weight", (outputs, inputs)))
        if bias:
            bias_of = b.parameter(f"{name}.bias", (outputs,))
            result = b.elementwise("Add", result, bias_of)
        return result

    def embedding(self, name: str, ids: SSAValue, rows: int, width: int) -> SSAValue:
        """
        Adds a `torch.nn.Embedding`, which looks up the rows `ids` of a weight [rows,
        width]. Returns its result.
        """
        weight = self.at(name).parameter(f"{name}.weight", (rows, width))
        return self.rows(weight, ids)

    def rows(self, weight: SSAValue, ids: SSAValue) -> SSAValue:
        """Returns the rows `ids` of the matrix `weight`."""
        shape = (*shape_of(ids), shape_of(weight)[-1])
        return self.op("Gather", [weight, ids], shape, axis=0)

    def norm(self, name: str, value: SSAValue, epsilon: float) -> SSAValue:
        """
        Adds a `torch.nn.LayerNorm` over the last dimension of `value`, and returns its
        result.
        """
        b, width = self.at(name), shape_of(value)[-1:]
        scale = b.parameter(f"{name}.weight", width, "ones")
        bias = b.parameter(f"{name}.bias", width)
        return b.op(
            "LayerNormalization",
            [value, scale, bias],
            shape_of(value),
            axis=-1,
            epsilon=epsilon,
        )

    def rms_norm(self, name: str, value: SSAValue, epsilon: float) -> SSAValue:
        """
        Adds a `torch.nn.RMSNorm` over the last dimension of `value`, and returns its
        result.
        """
        b = self.at(name)
        scale = b.parameter(f"{name}.weight", shape_of(value)[-1:], "ones")
        return b.op(
            "RMSNormalization",
            [value, scale],
            shape_of(value),
            axis=-1,
            epsilon=epsilon,
        )

    def heads(self, value: SSAValue, width: int) -> SSAValue:
        """
        Returns `value`, [batch, seq, heads x width], as [batch, heads, seq, width].
        """
        batch, seq, features = shape_of(value)
        value = self.reshape(value, (batch, seq, features // width, width))
        return self.transpose(value, 0, 2, 1, 3)

    def merge_heads(self, value: SSAValue) -> SSAValue:
        """
        Returns `value`, [batch, heads, seq, width], as [batch, seq, heads x width].
        """
        batch, heads, seq, width = shape_of(value)
        value = self.transpose(value, 0, 2, 1, 3)
        return self.reshape(value, (batch, seq, heads * width))

    def attention(
        self, query: SSAValue, key: SSAValue, value: SSAValue, causal: bool = False
    ) -> SSAValue:
        """
        Adds attention of `query` [batch, heads, seq, width] to `key` and `value`, and
        returns the result. The number of key heads may be a divisor of the number of
        query heads; several query heads then share a key head.
        """
        inputs = [query, key, value]
        return self.op("Attention", inputs, shape_of(query), is_causal=int(causal))

    def attention_written_out(
        self,
        query: SSAValue,
        key: SSAValue,
        value: SSAValue,
        bias: SSAValue | None = None,
    ) -> SSAValue:
        """
        Adds attention of `query` [batch, heads, seq, width] to `key` and `value` as two
        products and a softmax, and returns the result. Scores are not scaled. `bias`,
        if given, is added to the scores and must broadcast to [batch, heads, seq,
        keys].
        """
        key = self.transpose(key, 0, 1, 3, 2)
        shape = (*shape_of(query)[:-1], shape_of(key)[-1])
        scores = self.op("MatMul", [query, key], shape)
        if bias is not None:
            scores = self.elementwise("Add", scores, bias)
        weights = self.elementwise("Softmax", scores, axis=-1)
        return self.op("MatMul", [weights, value], shape_of(query))

    def convolution(
        self,
        name: str,
        value: SSAValue,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = False,
    ) -> SSAValue:
        """
        Adds a `torch.nn.Conv2d` with square kernels to an image [batch, channels,
        height, width], and returns its result.
        """
        b, (batch, channels, *sides) = self.at(name), shape_of(value)
        square = (outputs, channels, kernel, kernel)
        inputs = [value, b.parameter(f"{name}.weight", square)]
        if bias:
            inputs.append(b.parameter(f"{name}.bias", (outputs,)))
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
        return b.op(
            "Conv",
            inputs,
            (batch, outputs, *sides),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[padding] * 4,
        )

    def batch_norm(
        self, name: str, value: SSAValue, epsilon: float = 1e-5, momentum: float = 0.1
    ) -> SSAValue:
        """
        Adds a `torch.nn.BatchNorm2d`, and returns its result. In training mode the
        module uses the batch's statistics and moves the running statistics by
        `momentum`. In evaluation mode it uses the running statistics.
        """
        b, channels = self.at(name), shape_of(value)[1:2]
        inputs = [
            b.parameter(f"{name}.weight", channels, "ones"),
            b.parameter(f"{name}.bias", channels),
            b.parameter(f"{name}.running_mean", channels, role="constant"),
            b.parameter(f"{name}.running_var", channels, "ones", role="constant"),
        ]
        shapes, attributes = [shape_of(value)], {"epsilon": epsilon}
        if self.trains:
            shapes += [channels] * 2
            attributes |= {"training_mode": 1, "momentum": 1 - momentum}
        [result, *_] = b.ops(
            "BatchNormalization", [value, *inputs], shapes, **attributes
        )
        return result

    def group_norm(
        self, name: str, value: SSAValue, groups: int, epsilon: float
    ) -> SSAValue:
        """
        Adds a `torch.nn.GroupNorm` of a tensor [batch, channels, ...], and returns its
        result.
        """
        b, channels = self.at(name), shape_of(value)[1:2]
        scale = b.parameter(f"{name}.weight", channels, "ones")
        inputs = [value, scale, b.parameter(f"{name}.bias", channels)]
        return b.op(
            "GroupNormalization",
            inputs,
            shape_of(value),
            num_groups=groups,
            epsilon=epsilon,
        )

    def max_pool(
        self, value: SSAValue, kernel: int, stride: int, padding: int = 0
    ) -> SSAValue:
        """
        Adds a `torch.nn.MaxPool2d` of an image [batch, channels, height, width], and
        returns its result.
        """
        batch, channels, *sides = shape_of(value)
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
        return self.op(
            "MaxPool",
            [value],
            (batch, channels, *sides),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[padding] * 4,
        )

    def single(self, number: npt.ArrayLike) -> SSAValue:
        """
        Adds a constant in single precision, regardless of the model's precision, and
        returns it.
        """
        array = np.asarray(number, np.float32)
        return self.op("Constant", [], array.shape, f32, value=array)

    def layer(self, name: str, result: SSAValue) -> Layer:
        """
        Returns the layer: the finished function, called `name` and returning `result`,
        and its parameters.
        """
        return Layer(self.finish(name, [result]), self.own)

    def stack(
        self, layers: Sequence[tuple[str, Layer]], value: SSAValue, *others: SSAValue
    ) -> SSAValue:
        """
        Adds calls of `layers` one after the other, as modules of the given names, and
        returns the last result. Each call takes the previous result, the values
        `others`, and the layer's parameters.
        """
        for name, layer in layers:
            own = self.parameters(self.path(name), layer.parameters)
            arguments = [value, *others, *own]
            value = self.call(layer.function, self.path(name), arguments)
        return value


def check_heads(width: int, heads: int) -> None:
    """Raises DistIRError if `heads` does not divide `width`."""
    if width % heads:
        raise DistIRError(
            f"{heads} heads do not divide the model width {width}; choose a number of "
            "heads that does"
        )
