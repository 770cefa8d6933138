"""Random arguments for a program: values that every op of it can work on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.onnx import OnnxOp
from distir.dialects.onnx_values import numpy_dtype
from distir.dialects.train_ops.checks import shape_of
from distir.dialects.train_ops.losses import CrossEntropyOp
from distir.errors import DistIRError
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    functions,
)

Array = npt.NDArray[Any]

PARAMETER_SCALE = 0.02
"""The standard deviation of random parameters, as language models are initialised."""

_LOOKUPS: dict[str, tuple[int, int]] = {
    # op: positions of the table and of the indices into it, along attribute `axis`
    "onnx.Gather": (0, 1),
    "onnx.GatherElements": (0, 1),
    "onnx.ScatterElements": (0, 1),
    "onnx.NegativeLogLikelihoodLoss": (0, 1),
    "onnx.SoftmaxCrossEntropyLoss": (0, 1),
}
_KEEPS_VALUES = frozenset(
    f"onnx.{name}"
    for name in (
        "Cast",
        "Clip",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Max",
        "Min",
        "Mod",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    )
)
"""Ops whose results hold values of their first operands, moved or selected."""


def random_arguments(
    module: ModuleOp, seed: int, weights: Mapping[str, npt.ArrayLike] | None = None
) -> list[Array]:
    """
    The global value of every argument of the entry function, in order: from `weights`
    where they hold its name, else random from the seed and the name alone, so that two
    programs with the same arguments get the same values.

    Parameters are small normal numbers, states too, but none negative (there are averages
    of squares), and other floats standard normal ones. Integers that index a table are
    valid indices of it; others, like masks, are ones (with zeros at the end of every
    other row, like padding, if they have two dimensions).
    Raises DistIRError.
    """
    function = entry_function(module)
    bounds = _IndexBounds(module)
    return [
        np.asarray(weights[name])
        if weights is not None and name in weights
        else _random(name, arg.type, role, bounds.of(arg), seed)
        for arg, name, role in zip(
            function.body.block.args,
            argument_names(function),
            argument_roles(function),
            strict=True,
        )
    ]


def _random(
    name: str, type_: Attribute, role: str, bound: int | None, seed: int
) -> Array:
    if not isinstance(type_, TensorType):
        raise DistIRError(
            f"argument {name!r} is a {type_}, for which there are no random values; "
            "give the inputs in a file"
        )
    shape = type_.get_shape()
    if any(size < 0 for size in shape):
        raise DistIRError(
            f"argument {name!r} has no fixed size ({type_}); give its dimensions at import "
            "(--dim NAME=SIZE)"
        )
    dtype = numpy_dtype(type_.element_type)
    digest = hashlib.sha256(name.encode()).digest()
    generator = np.random.default_rng([abs(seed), int.from_bytes(digest[:8], "big")])
    if dtype.kind in "iu":
        if bound is not None:
            return generator.integers(0, max(bound, 1), shape).astype(dtype)
        return _mask(shape).astype(dtype)
    if dtype.kind == "b":
        return _mask(shape).astype(dtype)
    if dtype.kind == "O":
        return np.full(shape, "text", dtype=object)
    numbers = generator.standard_normal(shape)
    if dtype.kind == "c":
        numbers = numbers + 1j * generator.standard_normal(shape)
    if role in ("parameter", "state"):
        numbers = numbers * PARAMETER_SCALE
    if role == "state":
        numbers = np.abs(numbers)
    return numbers.astype(dtype)


def _mask(shape: tuple[int, ...]) -> Array:
    mask = np.ones(shape, dtype=np.int64)
    if len(shape) == 2:
        mask[1::2, shape[1] - shape[1] // 4 :] = 0
    return mask


class _IndexBounds:
    """The sizes of the tables that values index, found by following their uses."""

    def __init__(self, module: ModuleOp):
        self._functions = functions(module)
        self._calls: dict[str, list[CallOp]] = {}
        for op in module.walk():
            if isinstance(op, CallOp):
                self._calls.setdefault(op.callee.string_value(), []).append(op)

    def of(self, value: SSAValue) -> int | None:
        """
        The smallest table that some use of the value, or of what has its values,
        indexes; None if there is none.
        """
        pending, seen = [value], {value}
        found: list[int] = []
        while pending:
            current = pending.pop()
            for use in current.uses:
                op = use.operation
                bound = _table_size(op, use.index)
                if bound is not None:
                    found.append(bound)
                for target in self._same_values(op, use.index):
                    if target not in seen:
                        seen.add(target)
                        pending.append(target)
        return min(found, default=None)

    def _same_values(self, op: Operation, index: int) -> list[SSAValue]:
        """What holds the values of an operand of an op, up to order and selection."""
        if isinstance(op, CallOp):
            callee = self._functions.get(op.callee.string_value())
            return [] if callee is None else [callee.body.block.args[index]]
        if isinstance(op, ReturnOp):
            function = op.parent_op()
            assert isinstance(function, FuncOp)
            calls = self._calls.get(function.sym_name.data, [])
            return [call.results[index] for call in calls]
        if op.dialect_name() in ("collective", "dist"):
            return list(op.results)
        if op.name not in _KEEPS_VALUES or not isinstance(op, OnnxOp):
            return []
        if op.name == "onnx.Gather" and op.operand_position(index) != 0:
            return []
        if op.name == "onnx.Where" and op.operand_position(index) == 0:
            return []
        return list(op.results)


def _table_size(op: Operation, index: int) -> int | None:
    if isinstance(op, CrossEntropyOp) and index == 1:
        return shape_of(op.logits)[-1]
    if not isinstance(op, OnnxOp):
        return None
    position = op.operand_position(index)
    if op.name == "onnx.OneHot" and position == 0:
        depth = op.operands[1].owner
        if isinstance(depth, OnnxOp) and depth.name == "onnx.Constant":
            return int(np.asarray(depth.attribute("value")).reshape(-1)[0])
        return None
    if op.name in ("onnx.GatherND", "onnx.ScatterND") and position == 1:
        table = op.operands[0].type
        first = op.attribute("batch_dims") if op.name == "onnx.GatherND" else 0
        return min(table.get_shape()[first:]) if isinstance(table, TensorType) else None
    if op.name not in _LOOKUPS or position != _LOOKUPS[op.name][1]:
        return None
    table = op.operands[_LOOKUPS[op.name][0]].type
    if not isinstance(table, TensorType) or not table.get_num_dims():
        return None
    axis = op.attribute("axis") if "axis" in op.SCHEMA.attributes else 1
    size = table.get_shape()[axis]
    return size if size >= 0 else None
