"""
Makes dropout drop the same elements under every distribution of a program. Can also let
the backward pass reuse the masks of the forward pass instead of drawing them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType, i1, i64
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.constants import direct_constant
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.dropout import DropoutOp
from distir.dialects.train_ops.opaque import OpaqueOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, shape
from distir.gradients.training_step import TrainingStep
from distir.program import (
    argument_attributes,
    describe,
    entry_function,
    made_with,
    reachable_functions,
    replace_call,
    set_argument_attributes,
    walk_functions,
)
from distir.transforms.patterns.raising import raise_dropped_attention

DEFAULT_RATIO = 0.5
"""The default ratio of ONNX's Dropout."""


def dropouts(functions: Iterable[FuncOp]) -> dict[OnnxOp, FuncOp]:
    """
    Returns the Dropout ops in training mode, in program order, each with its function.
    Includes Dropouts without an operand for the mode if any Dropout is in training
    mode. Raises DistIRError if the mode of a Dropout depends on values at run time.
    """
    known = {
        op: function
        for function in functions
        for op in function.body.block.ops
        if isinstance(op, OnnxOp) and op.name == "onnx.Dropout"
    }
    trains = any(_mode(op) for op in known)
    # PyTorch's exporters write the dropout inside attention without a mode.
    return {
        op: function
        for op, function in known.items()
        if _mode(op) or (trains and _mode(op) is None)
    }


def _mode(op: OnnxOp) -> bool | None:
    """
    Whether a Dropout is in training mode; None if the Dropout has no operand for the
    mode. Raises DistIRError if the mode is not constant.
    """
    mode = op.input(2)
    if mode is None:
        return None
    known = direct_constant(mode)
    if known is None:
        raise DistIRError(
            f"{describe(op)} is told at run time whether it is in training mode; export "
            f"the model in one mode"
        )
    return bool(known.any())


def _ratio(op: OnnxOp) -> float:
    ratio = op.input(1)
    if ratio is None:
        return DEFAULT_RATIO
    known = direct_constant(ratio)
    if known is None:
        raise DistIRError(
            f"{describe(op)} is told its ratio at run time; export the model with a "
            f"constant one"
        )
    value = float(known.reshape(-1)[0])
    if not 0 <= value < 1:
        raise DistIRError(
            f"{describe(op)} has the ratio {value}; expected at least 0 and less than 1"
        )
    return round(value, 7)  # It is a 32-bit float: 0.1, not 0.100000001.


def replace_dropout(op: OnnxOp, counter: SSAValue, seed: int, stream: int) -> None:
    """
    Replaces a Dropout by `train.dropout`, or by its operand if its ratio is 0.
    `counter`, `seed` and `stream` determine the random numbers. Raises DistIRError if
    an op uses the Dropout's mask.
    """
    if len(op.results) > 1 and op.results[1].uses:
        raise DistIRError(
            f"{describe(op)}: the program uses the mask of a dropout, which is never made "
            f"as a whole; use the result only"
        )
    ratio = _ratio(op)
    value = op.operands[0]
    if ratio:
        new = DropoutOp(value, counter, ratio=ratio, seed=seed, stream=stream)
        new.attributes.update(op.attributes)
        new.y.name_hint = op.results[0].name_hint
        Rewriter.insert_op(new, InsertPoint.before(op))
        value = new.y
    op.results[0].replace_all_uses_with(value)
    op.detach()
    op.erase()


class Counters:
    """
    Gives each function a number, called its counter, from which its dropouts draw
    random numbers. In the entry function the counter is the number of finished steps.
    In any other function it is `calls * caller's counter + call`. Here `calls` is the
    number of calls of the function in the program's text, and `call` is the index of
    the call. Every step and every call thus has a different counter.
    """

    def __init__(self, module: ModuleOp, needed_by: Iterable[FuncOp]):
        self.module = module
        self.entry = entry_function(module)
        self.values: dict[FuncOp, SSAValue] = {}
        functions = reachable_functions(module)
        own = {function.sym_name.data for function in needed_by}
        calls: Counter[str] = Counter()
        for function in functions:
            for call in _calls(function):
                calls[call.callee.string_value()] += 1
                if call.callee.string_value() in own:
                    own.add(function.sym_name.data)
        place: Counter[str] = Counter()
        for function in functions:
            if function.sym_name.data not in own:
                continue
            self.values[function] = self._argument(function)
            for call in _calls(function):
                name = call.callee.string_value()
                if name in own:
                    self._pass_on(call, calls[name], place[name], function)
                    place[name] += 1

    def _argument(self, function: FuncOp) -> SSAValue:
        """
        Returns the argument of a function that holds its counter. A function without a
        counter gets one as a new last argument.
        """
        type_ = TensorType(i64, [])
        block = function.body.block
        if function is self.entry:
            step = TrainingStep(self.module)
            argument = step.counter()
            if argument is None:
                argument = step.add_counter()
                step.describe_arguments()
            return argument
        attributes = [*argument_attributes(function), {}]
        value = block.insert_arg(type_, len(block.args))
        value.name_hint = "counter"
        function.update_function_type()
        set_argument_attributes(function, attributes)
        return value

    def _pass_on(self, call: CallOp, calls: int, index: int, caller: FuncOp) -> None:
        """
        Adds the counter of the called function to the operands of `call`. `index` is
        the index of `call` among the `calls` calls of the function.
        """
        build = GradientBuilder(
            lambda op: Rewriter.insert_op(op, InsertPoint.before(call)),
            call.attributes.get(SCOPE),
        )
        value = self.values[caller]
        if calls > 1:
            number = build.constant(np.array(calls, np.int64))
            own = build.constant(np.array(index, np.int64))
            value = build.onnx("Add", build.onnx("Mul", value, number), own)
        name = call.callee.string_value()
        replace_call(call, name, [*call.operands, value], call.result_types)


def _calls(function: FuncOp) -> list[CallOp]:
    return [op for op in function.body.block.ops if isinstance(op, CallOp)]


def train_dropouts(module: ModuleOp, seed: int, *, attention: bool) -> None:
    """
    Replaces every `onnx.Dropout` in training mode by `train.dropout`, and gives opaque
    modules that draw random numbers a counter. The random numbers depend on `seed`.
    With `attention`, attention with dropout on its probabilities becomes
    `train.dropped_attention`. Raises DistIRError if a Dropout's mode is not constant or
    its mask is used.
    """
    functions = reachable_functions(module)
    found: dict[Operation, FuncOp] = {**dropouts(functions)}
    found |= {
        op: function
        for function in functions
        for op in function.body.block.ops
        if isinstance(op, OpaqueOp) and op.draws is not None and op.counter is None
    }
    if found:
        _replace_all(module, found, seed)
    if attention:
        raise_dropped_attention(module)


def _replace_all(
    module: ModuleOp, found: Mapping[Operation, FuncOp], seed: int
) -> None:
    taken = {
        o.stream.value.data
        for o in module.walk()
        if isinstance(o, DropoutOp | OpaqueOp) and o.stream is not None
    }
    streams = (n for n in count() if n not in taken)
    counters = Counters(module, found.values())
    for op, function in found.items():
        if isinstance(op, OpaqueOp):
            _count(op, counters.values[function], seed, next(streams))
        else:
            assert isinstance(op, OnnxOp)
            replace_dropout(op, counters.values[function], seed, next(streams))


def _count(op: OpaqueOp, counter: SSAValue, seed: int, stream: int) -> None:
    """
    Makes an opaque module draw its random numbers from its function's counter, `seed`
    and `stream`.
    """
    properties = {n: v for n, v in op.properties.items() if n != "operandSegmentSizes"}
    properties |= {"seed": IntegerAttr(seed, i64), "stream": IntegerAttr(stream, i64)}
    types = [result.type for result in op.outputs]
    new = OpaqueOp(op.inputs, counter, [], **properties, outputs=types)
    new.attributes.update(op.attributes)
    for before, after in zip(op.outputs, new.outputs, strict=True):
        after.name_hint = before.name_hint
    Rewriter.replace_op(op, new)


def with_masks(module: ModuleOp) -> None:
    """
    Makes every dropout of a program return its mask, so that the gradient of the
    dropout can use the mask.
    """
    for _, op in list(walk_functions(module)):
        if not isinstance(op, DropoutOp) or op.mask is not None:
            continue
        mask = TensorType(i1, shape(op.x))
        new = made_with(op, op.operands, [op.y.type, mask])
        assert isinstance(new, DropoutOp)
        new.y.name_hint = op.y.name_hint
        new.results[1].name_hint = "mask"
        Rewriter.replace_op(op, new, [new.y])
