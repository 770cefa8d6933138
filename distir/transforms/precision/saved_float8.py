"""
Keeps inputs of products in 8-bit floats until the backward pass. Where a product rounds
its input to 8-bit floats, and its gradient rounds the same values again, the forward
function returns the rounded input and its scale instead of the input itself, as
Transformer Engine does. Products in blocks keep their inputs in 8 or 4 bits without
these rewrites, as their gradients need other blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.float8 import Float8ScaleOp, ToFloat8Op
from distir.gradients.call_pairs import (
    CallPair,
    call_pairs,
    describe_backward,
    saved_values,
)
from distir.program import (
    argument_attributes,
    functions,
    made_with,
    reachable_functions,
    replace_call,
    return_op,
    set_argument_attributes,
    set_results,
)

REARRANGING = ("onnx.Reshape", "onnx.Transpose")
"""The ops that keep all elements of a tensor, and thus the scale of the tensor."""


def save_rounded_inputs(module: ModuleOp) -> None:
    """
    Makes forward functions return the inputs of 8-bit products in 8-bit floats, in
    place, where the backward function uses an input only to round it again with one
    scale for the whole tensor. An input that is also needed otherwise stays as it is.
    """
    known = functions(module)
    calls: dict[str, int] = {}
    pairs: dict[tuple[str, str], list[CallPair]] = {}
    for function in reachable_functions(module):
        for op in function.body.block.ops:
            if isinstance(op, CallOp):
                name = op.callee.string_value()
                calls[name] = calls.get(name, 0) + 1
        for pair in call_pairs(function, known):
            names = pair.forward.callee, pair.backward.callee
            key = names[0].string_value(), names[1].string_value()
            pairs.setdefault(key, []).append(pair)
    for (forward, backward), found in pairs.items():
        # A function that is also called otherwise keeps its type.
        if calls[forward] == calls[backward] == len(found):
            _save_rounded(known[forward], known[backward], found)


def _save_rounded(forward: FuncOp, backward: FuncOp, pairs: list[CallPair]) -> None:
    """
    Rewrites a forward and a backward function and their calls, which are all in
    `pairs`.
    """
    outputs, saved = list(return_op(forward).operands), saved_values(backward)
    attributes, count = argument_attributes(backward), len(saved)
    for place, (kind, index) in enumerate(saved[:count]):
        if kind != "result" or not all(_is_only_saved(p, place, index) for p in pairs):
            continue
        value, argument = outputs[index], backward.args[place]
        if not isinstance(argument.type, TensorType) or outputs.count(value) > 1:
            continue
        format_ = _format_of(argument)
        rounded = None if format_ is None else _rounded(value, format_)
        if rounded is None:
            continue
        saved.append(("result", len(outputs)))
        outputs[index] = rounded.y
        outputs.append(rounded.scale)
        attributes.insert(len(saved) - 1, {})
        scale = backward.body.block.insert_arg(rounded.scale.type, len(saved) - 1)
        scale.name_hint = rounded.scale.name_hint
        _use_rounded(argument, rounded.y.type, scale)
    if len(saved) == count:
        return
    set_results(forward, outputs)
    backward.update_function_type()
    set_argument_attributes(backward, attributes)
    describe_backward(backward, forward, saved)
    for pair in pairs:
        call = replace_call(
            pair.forward,
            forward.sym_name.data,
            pair.forward.operands,
            forward.function_type.outputs.data,
        )
        own = [
            (call.operands if kind == "argument" else call.results)[i]
            for kind, i in saved
        ]
        rest = pair.backward.operands[count:]
        types = pair.backward.result_types
        replace_call(pair.backward, backward.sym_name.data, [*own, *rest], types)


def _is_only_saved(pair: CallPair, place: int, index: int) -> bool:
    """
    Whether the result of the forward call with index `index` is the operand of the
    backward call with index `place`, and has no other use.
    """
    uses = list(pair.forward.results[index].uses)
    return [(use.operation, use.index) for use in uses] == [(pair.backward, place)]


def _readers(value: SSAValue) -> Iterator[Operation]:
    """Yields the ops that use `value` or a view of it, apart from the views."""
    for use in value.uses:
        if use.operation.name in REARRANGING and use.index == 0:
            yield from _readers(use.operation.results[0])
        else:
            yield use.operation


def _format_of(argument: SSAValue) -> str | None:
    """
    Returns the name of the 8-bit format to which a function rounds its argument, with
    one scale for the whole tensor. Returns None if the function uses the argument
    otherwise, or not at all.
    """
    readers = list(_readers(argument))
    scales = [op for op in readers if isinstance(op, Float8ScaleOp)]
    formats = {op.format.data for op in scales}
    if len(formats) != 1 or any(op.axis is not None for op in scales):
        return None
    known = {op.scale for op in scales}
    for op in readers:
        if isinstance(op, ToFloat8Op):
            if op.scale not in known:
                return None
        elif not isinstance(op, Float8ScaleOp):
            return None
    return formats.pop()


def _rounded(value: SSAValue, format_: str) -> ToFloat8Op | None:
    """
    Returns the op that rounds `value` to `format_`, with one scale for the whole
    tensor. Returns None if there is none.
    """
    for use in value.uses:
        op = use.operation
        if not isinstance(op, ToFloat8Op) or use.index != 0:
            continue
        scale = op.scale.owner
        if (
            isinstance(scale, Float8ScaleOp)
            and scale.x is value
            and scale.axis is None
            and scale.format.data == format_
        ):
            return op
    return None


def _use_rounded(argument: SSAValue, type_: TensorType, scale: SSAValue) -> None:
    """
    Replaces an argument by its rounded values, of the type `type_`, and the roundings
    of its views by views of the rounded values.
    """
    readers = list(_readers(argument))
    for op in readers:
        if isinstance(op, Float8ScaleOp):
            op.scale.replace_all_uses_with(scale)
    new = Rewriter.replace_value_with_new_type(argument, type_)
    _retype(new)
    for op in readers:
        if isinstance(op, ToFloat8Op):
            op.y.replace_all_uses_with(op.x)
    for op in readers:
        Rewriter.erase_op(op)


def _retype(value: SSAValue) -> None:
    """Gives all views of `value` the element type of `value`."""
    for use in list(value.uses):
        op = use.operation
        if op.name in REARRANGING and use.index == 0:
            view = op.results[0]
            new = made_with(
                op, op.operands, [TensorType(element_type(value), shape_of(view))]
            )
            new.results[0].name_hint = view.name_hint
            Rewriter.replace_op(op, new)
            _retype(new.results[0])
