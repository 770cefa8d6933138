"""Classifies the values of a program by kind, for reports on its memory."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import SliceOp
from distir.dialects.dist import SendOp
from distir.dialects.host import is_on_host
from distir.dialects.onnx_ops.traits import ARITHMETIC, COPIES, REARRANGEMENTS
from distir.dialects.train_ops.optimizers import UpdateOp
from distir.program import (
    GRADIENT,
    arguments_of,
    entry_function,
    functions,
    results_of,
    return_op,
    updated_arguments,
)

PARAMETERS = "parameters"
STATES = "optimizer state"
GRADIENTS = "gradients"
ACTIVATIONS = "activations"
RECEIVED = "communication buffers"
WORKSPACE = "workspace"
INPUTS = "inputs"
CACHES = "caches"
CONSTANTS = "constants"

KINDS = (
    PARAMETERS,
    STATES,
    GRADIENTS,
    ACTIVATIONS,
    RECEIVED,
    WORKSPACE,
    INPUTS,
    CACHES,
    CONSTANTS,
)

_OF_ROLE = {
    "parameter": PARAMETERS,
    "state": STATES,
    "constant": CONSTANTS,
    "cache": CACHES,
}

# These ops change the form or place of a value, but not its kind ...
_FORMS = COPIES | REARRANGEMENTS | {"onnx.Cast", "onnx.Slice", "onnx.Pad"}
# ... and these add up, scale or clip gradients, which stay gradients.
_ARITHMETIC = ARITHMETIC | {"onnx.Clip", "onnx.Sum"}


class ValueKinds:
    """
    The kind of each value of a module, one of `KINDS`.

    - Arguments of the entry function are classified by their role. A result that
      updates an argument has the argument's kind, and so do values that become such a
      result by gathering parts or by casts.
    - Gradients are gradients of parameters: operands of optimizers, results of the
      program with the role of a gradient, and the terms and parts that these are made
      of. Gradients are found by following values backwards, through calls. A function
      that is called from several places is classified once for all calls.
    - Constants are results of `onnx.Constant`. Communication buffers are all other
      results of collectives and sends.
    - Activations are all other values that the program computes. Activations include
      the gradients of activations, and values of steps that `differentiate` did not
      make, such as the optimizer of an imported training step.
    """

    def __init__(self, module: ModuleOp):
        self._functions = functions(module)
        self._entry = entry_function(module)
        self._kinds: dict[SSAValue, str] = {}
        self._calls: dict[str, list[CallOp]] = {}
        updates: list[UpdateOp] = []
        for function in self._functions.values():
            if function.is_declaration:
                continue
            for op in function.body.block.ops:
                if isinstance(op, CallOp):
                    self._calls.setdefault(op.callee.string_value(), []).append(op)
                elif isinstance(op, UpdateOp):
                    updates.append(op)
        entry = self._entry
        arguments = list(entry.body.block.args)
        for argument in arguments_of(entry):
            kind = _OF_ROLE.get(argument.role, INPUTS)
            self._kinds[argument.value] = kind
            if is_on_host(argument.type):
                for use in argument.value.uses:
                    self._kinds.update(dict.fromkeys(use.operation.results, kind))
        returned = list(return_op(entry).operands)
        for result, argument in updated_arguments(entry).items():
            self._mark(returned[result], self._kinds[arguments[argument]])
        for update in updates:
            self._mark(update.gradient_operand, GRADIENTS)
        for result in results_of(entry):
            if result.role == GRADIENT:
                self._mark(result.value, GRADIENTS)

    def __getitem__(self, value: SSAValue) -> str:
        """Returns the kind of `value`."""
        known = self._kinds.get(value)
        if known is not None:
            return known
        op = value.owner
        if isinstance(op, Operation):
            if op.name == "onnx.Constant":
                return CONSTANTS
            if _communicates(op):
                return RECEIVED
        return ACTIVATIONS

    def _mark(self, value: SSAValue, kind: str) -> None:
        """
        Sets the kind of `value`, and of the values from which copies, casts and
        collectives make `value`. If the kind is gradients, arithmetic is followed too.
        Values that already have a kind keep it.
        """
        pending = [value]
        while pending:
            value = pending.pop()
            if value in self._kinds:
                continue
            self._kinds[value] = kind
            pending += self._made_from(value, kind)

    def _made_from(self, value: SSAValue, kind: str) -> Iterator[SSAValue]:
        op = value.owner
        if isinstance(value, BlockArgument):
            function = value.owner.parent_op()
            if isinstance(function, FuncOp) and function is not self._entry:
                for call in self._calls.get(function.sym_name.data, []):
                    yield call.operands[value.index]
        elif isinstance(op, CallOp):
            callee = self._functions.get(op.callee.string_value())
            if callee is not None and isinstance(value, OpResult):
                yield return_op(callee).operands[value.index]
        elif isinstance(op, Operation):
            if op.name == "onnx.Concat":
                yield from op.operands
            elif isinstance(op, CollectiveOp | SendOp) or _FORMS.of(op):
                yield op.operands[0]
            elif kind == GRADIENTS and op.name in _ARITHMETIC:
                yield from (v for v in op.operands if _alike(v, value))


def _communicates(op: Operation) -> bool:
    return isinstance(op, SendOp) or (
        isinstance(op, CollectiveOp) and not isinstance(op, SliceOp)
    )


def _alike(first: SSAValue, second: SSAValue) -> bool:
    return (
        isinstance(first.type, TensorType)
        and isinstance(second.type, TensorType)
        and first.type.get_shape() == second.type.get_shape()
    )
