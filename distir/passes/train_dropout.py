"""`train-dropout`: dropout that every distribution draws alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType, i64
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import SCOPE
from distir.dialects.onnx import OnnxOp
from distir.dialects.train_ops.dropout import DropoutOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder
from distir.gradients.training_step import TrainingStep
from distir.interpreters.types import constant_operand
from distir.passes.options import DistIRPass
from distir.program import (
    argument_attributes,
    describe,
    entry_function,
    reachable_functions,
    set_argument_attributes,
)

DEFAULT_RATIO = 0.5
"""ONNX's ratio of a Dropout that gives none."""


def dropouts(functions: Iterable[FuncOp]) -> list[OnnxOp]:
    """
    The Dropouts that set elements to zero, in program order. Raises DistIRError for one
    that depends on values of a run.
    """
    known = [
        op
        for function in functions
        for op in function.body.block.ops
        if isinstance(op, OnnxOp) and op.name == "onnx.Dropout"
    ]
    trains = any(_mode(op) for op in known)
    # PyTorch's exporters write the dropout inside attention without a mode.
    return [op for op in known if (_mode(op) or (trains and _mode(op) is None))]


def _mode(op: OnnxOp) -> bool | None:
    """Whether a Dropout is in training mode; None where it does not say."""
    mode = op.input(2)
    if mode is None:
        return None
    known = constant_operand(mode)
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
    known = constant_operand(ratio)
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
    """`train.dropout` in place of a Dropout. Raises DistIRError if its mask is used."""
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
    Gives each function the number that its dropouts take as `counter`: in the entry that
    of the steps done before, in another one `calls * caller's counter + call`, where
    `calls` is how many calls of it the program's text has. So every step and every call
    has another one.
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
        """The counter of a function; a new last argument if there is none."""
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
        function.properties["function_type"] = FunctionType.from_lists(
            block.arg_types, function.function_type.outputs.data
        )
        set_argument_attributes(function, attributes)
        return value

    def _pass_on(self, call: CallOp, calls: int, index: int, caller: FuncOp) -> None:
        """Makes a call take the counter of the callee."""
        build = GradientBuilder(
            lambda op: Rewriter.insert_op(op, InsertPoint.before(call)),
            call.attributes.get(SCOPE),
        )
        value = self.values[caller]
        if calls > 1:
            number = build.constant(np.array(calls, np.int64))
            own = build.constant(np.array(index, np.int64))
            value = build.onnx("Add", build.onnx("Mul", value, number), own)
        new = CallOp(
            call.callee.string_value(), [*call.operands, value], call.result_types
        )
        new.attributes.update(call.attributes)
        for before, after in zip(call.results, new.results, strict=True):
            after.name_hint = before.name_hint
        Rewriter.replace_op(call, new)


def _calls(function: FuncOp) -> list[CallOp]:
    return [op for op in function.body.block.ops if isinstance(op, CallOp)]


@dataclass(frozen=True)
class TrainDropoutPass(DistIRPass):
    """
    Makes `train.dropout` of every `onnx.Dropout` in training mode. Its random numbers
    depend on the seed, the op, the step, the call and the position in the whole tensor
    alone, so that every distribution of the program draws the same ones, and so does the
    backward. The program takes the number of steps done before as the state
    `optimizer.step`, its functions a counter made of it.

    Where some Dropout is in training mode, those that do not say are too: PyTorch's
    exporters write the dropout inside attention so. Others stay as they are.

    - `seed`: of all random numbers, 32 bits.
    """

    name = "train-dropout"

    seed: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not 0 <= self.seed < 2**32:
            raise DistIRError(
                f"train-dropout: the seed is {self.seed}; expected a number of 32 bits"
            )
        functions = reachable_functions(op)
        found = dropouts(functions)
        if not found:
            return
        homes = {each: _function_of(each) for each in found}
        taken = {o.stream.value.data for o in op.walk() if isinstance(o, DropoutOp)}
        streams = (n for n in count() if n not in taken)
        counters = Counters(op, homes.values())
        for each, function in homes.items():
            replace_dropout(each, counters.values[function], self.seed, next(streams))


def _function_of(op: OnnxOp) -> FuncOp:
    function = op.parent_op()
    assert isinstance(function, FuncOp)
    return function
