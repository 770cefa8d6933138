"""
Evaluates one ONNX op with `onnx.reference`, or with a kernel of
`distir.interpreters.kernels` where `onnx.reference` is wrong or slow.

`onnx.reference` treats all sequences of a recurrent layer as equally long. A layer over
sequences of different lengths is therefore evaluated once for each length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from xdsl.dialects.builtin import TensorType, UnrankedTensorType
from xdsl.ir import Attribute

import distir.interpreters.kernels  # pyright: ignore[reportUnusedImport]
import distir.interpreters.reduction_kernels  # noqa: F401  # pyright: ignore[reportUnusedImport]
from distir.dialects.onnx_ops.inference import node_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import RECURRENT
from distir.dialects.onnx_ops.values import numpy_dtype, type_to_proto
from distir.dialects.onnx_ops.versions import OPSET_IMPORTS
from distir.errors import DistIRError
from distir.interpreters.elementwise_kernels import makes_integers
from distir.interpreters.kernels import kernel
from distir.program import describe

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]

_LENGTHS, _STATES = 4, (5, 6)
"""
The positions of a recurrent layer's inputs that hold the lengths of sequences, and the
initial states.
"""


def has_lengths(op: OnnxOp, inputs: Sequence[Any]) -> bool:
    """Whether `op` is a recurrent layer that gets the lengths of its sequences."""
    return (
        op.name in RECURRENT
        and len(inputs) > _LENGTHS
        and isinstance(inputs[_LENGTHS], np.ndarray)
        and len(inputs[_LENGTHS]) > 0
    )


def by_length(
    op: OnnxOp, inputs: Sequence[Any], run: Callable[[Sequence[Any]], Sequence[Array]]
) -> list[Array]:
    """
    Returns the results of a recurrent layer over sequences of different lengths. For
    each length, `run` evaluates the layer on the sequences of that length, without the
    padding after their ends. Outputs beyond the end of a sequence are 0. The last
    states of a sequence are the states at its end, where the reverse direction starts.
    """
    x, lengths = inputs[0], inputs[_LENGTHS]
    batch_first = bool(op.attribute("layout"))
    batch, steps = (0, 1) if batch_first else (1, 0)
    # Outputs are [steps, directions, batch, features], or have the batch first.
    batch_of = [0 if batch_first else 2, batch, batch]
    results: list[Array] = []
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        given = list(inputs)
        # A length of 0 is run as one step, to get results of the right shapes.
        some = np.take(x, rows, batch)
        given[0] = np.take(some, range(max(length, 1)), steps)
        given[_LENGTHS] = lengths[rows]
        for i in _STATES[: len(inputs) - _STATES[0]]:
            if inputs[i] is not None:
                given[i] = np.take(inputs[i], rows, batch)
        found = list(run(given))
        if not length:
            starts = given[_STATES[0] :][: len(found) - 1]
            starts += [None] * (len(found) - 1 - len(starts))
            found = [np.zeros_like(part) for part in found]
            for i, start in enumerate(starts, 1):
                found[i] = found[i] if start is None else start
        missing = [(0, 0)] * found[0].ndim
        missing[steps] = (0, x.shape[steps] - found[0].shape[steps])
        found[0] = np.pad(found[0], missing)
        pairs = list(zip(found, batch_of[: len(found)], strict=True))
        results = results or [
            np.repeat(np.take(part, [0], axis), len(lengths), axis)
            for part, axis in pairs
        ]
        for whole, (part, axis) in zip(results, pairs, strict=True):
            np.moveaxis(whole, axis, 0)[rows] = np.moveaxis(part, axis, 0)
    return results


_evaluators: dict[Any, ReferenceEvaluator] = {}


def evaluate(op: OnnxOp, inputs: Sequence[Any]) -> list[Any]:
    """
    Returns the results of an op on concrete inputs. `inputs` are in the order of the
    schema, with None for omitted ones; trailing ones may be left out. A tensor is a
    NumPy array, and a tensor of strings an array of Python strings. A sequence is a
    list, and an empty optional is None. Raises DistIRError if the op cannot be computed
    on these inputs.
    """
    found = evaluated(op, inputs)
    if isinstance(found, Exception):
        reason = str(found.__cause__ or found) or type(found).__name__
        raise DistIRError(
            f"{describe(op)} cannot be computed on "
            f"({', '.join(_shown(value) for value in inputs)}): {reason}"
        ) from found
    return found


def evaluated(op: OnnxOp, inputs: Sequence[Any]) -> list[Any] | Exception:
    """
    Returns the results of an op on concrete inputs, converted to the op's declared
    types. If the op cannot be computed, returns the exception.
    """
    results = computed(op, inputs)
    if isinstance(results, Exception):
        return results
    try:
        return [
            _conformed(value, result.type)
            for value, result in zip(results, op.results, strict=False)
        ]
    except Exception as error:
        return error


def computed(op: OnnxOp, inputs: Sequence[Any]) -> Sequence[Any] | Exception:
    """
    Returns the results of an op on concrete inputs. If the op cannot be computed,
    returns the exception. The inputs may have other shapes than the op's operands,
    because results are not compared with the op's declared types.
    """
    own = kernel.get(op.name)
    if op.name == "onnx.QuantizeLinear" and not makes_integers(op, inputs):
        own = None
    try:
        with np.errstate(all="ignore"):
            return _run_reference(op, inputs) if own is None else own(op, inputs)
    except Exception as error:
        return error


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__ if value is not None else "none"


def _conformed(value: Any, type_: Attribute) -> Any:
    """
    Returns `value` converted to its declared type `type_`. Raises TypeError if the
    shape of `value`, or its kind of elements, does not fit this type.
    """
    if not isinstance(type_, TensorType | UnrankedTensorType):
        return value
    array = np.asarray(value)
    dtype = numpy_dtype(type_.element_type)
    # `onnx.reference` returns some scalars in a wider type than the operands'.
    same = array.dtype == dtype or (
        array.dtype.kind == dtype.kind and dtype.kind in "fiu"
    )
    if not same and array.dtype.kind not in "OUS":
        raise TypeError(f"the result is {array.dtype}, but its type is {type_}")
    if isinstance(type_, TensorType):
        shape = type_.get_shape()
        if len(shape) != array.ndim or any(
            0 <= expected != size
            for expected, size in zip(shape, array.shape, strict=False)
        ):
            raise TypeError(
                f"the result has shape {array.shape}, but its type is {type_}"
            )
    return array if array.dtype == dtype else array.astype(dtype)


def _run_reference(op: OnnxOp, inputs: Sequence[Any]) -> Sequence[Any]:
    if has_lengths(op, inputs):
        return by_length(op, inputs, lambda some: _run_whole(op, some))
    return _run_whole(op, inputs)


def _run_whole(op: OnnxOp, inputs: Sequence[Any]) -> Sequence[Any]:
    # The body of a function op depends on the types and presence of its inputs.
    kinds = tuple(
        (v.dtype, v.ndim)
        if isinstance(v, np.ndarray)
        else (None if operand is None else operand.type)
        for v, operand in zip(inputs, op.input_values, strict=False)
    )
    key = (type(op), len(op.results), kinds, frozenset(op.properties.items()))
    evaluator = _evaluators.get(key)
    if evaluator is None:
        evaluator = _evaluators[key] = _new_evaluator(op, inputs)
    feeds = {
        f"x{i}": v
        for i, (v, operand) in enumerate(zip(inputs, op.input_values, strict=False))
        if operand is not None
    }
    results = evaluator.run(None, feeds)
    assert isinstance(results, list)
    return results


def _new_evaluator(op: OnnxOp, inputs: Sequence[Any]) -> ReferenceEvaluator:
    from onnx.reference import ReferenceEvaluator  # importing it is slow

    names = ["" if v is None else f"x{i}" for i, v in enumerate(op.input_values)]
    outputs = [f"y{i}" for i in range(len(op.results))]
    node = node_of(op, names, outputs)
    infos: list[onnx.ValueInfoProto] = []
    for name, operand, value in zip(names, op.input_values, inputs, strict=False):
        if operand is None:
            continue
        proto = type_to_proto(operand.type)
        if isinstance(value, np.ndarray):
            proto = helper.make_tensor_type_proto(
                proto.tensor_type.elem_type, [None] * value.ndim
            )
        infos.append(helper.make_value_info(name, proto))
    graph = helper.make_graph(
        [node], "op", infos, [onnx.ValueInfoProto(name=o) for o in outputs]
    )
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=OPSET_IMPORTS))
