"""Keeps residuals in the host's memory between the forward and the backward pass."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.train_ops.offload import FetchOp, OffloadOp
from distir.gradients.call_pairs import CallPair, describe_backward, saved_values
from distir.program import functions, replace_call, return_op, set_results, unique_name


class Offloading:
    """
    Makes forward and backward functions that keep residuals in the host's memory. Calls
    that need equal functions share them.
    """

    def __init__(self, module: ModuleOp):
        self._module = module
        self._known = functions(module)
        self._made: dict[tuple[str, tuple[int, ...]], tuple[FuncOp, FuncOp]] = {}

    def apply(self, pair: CallPair) -> bool:
        """
        Keeps values of a pair of calls in the host's memory until the backward call
        needs them. These are the results of the forward call that only the backward
        call uses, and the saved arguments of the forward call that are not arguments of
        the program. Returns whether there are any of these values.
        """
        backward = self._known[pair.backward.callee.string_value()]
        saved = saved_values(backward)
        moved = tuple(
            place
            for place, (kind, i) in enumerate(saved)
            if _is_moved(pair, kind, i)
            and isinstance(backward.args[place].type, TensorType)
        )
        if not moved:
            return False
        key = backward.sym_name.data, moved
        if key not in self._made:
            forward = self._known[pair.forward.callee.string_value()]
            self._made[key] = self._make(forward, backward, moved)
        forward, new = self._made[key]
        outputs = forward.function_type.outputs.data
        operands = pair.forward.operands
        call = replace_call(pair.forward, forward.sym_name.data, operands, outputs)
        given: list[SSAValue] = [
            (call.operands if kind == "argument" else call.results)[i]
            for kind, i in saved_values(new)
        ]
        given += pair.backward.operands[len(saved) :]
        types = pair.backward.result_types
        replace_call(pair.backward, new.sym_name.data, given, types)
        return True

    def _make(
        self, forward: FuncOp, backward: FuncOp, moved: tuple[int, ...]
    ) -> tuple[FuncOp, FuncOp]:
        ahead, behind, saved = forward.clone(), backward.clone(), saved_values(backward)
        outputs = list(return_op(ahead).operands)
        for place in moved:
            kind, i = saved[place]
            value = ahead.args[i] if kind == "argument" else outputs[i]
            there = _behind(value, ahead)
            if kind == "argument":
                saved[place] = ("result", len(outputs))
                outputs.append(there)
            else:
                outputs[i] = there
            _fetch(behind, place, there)
        set_results(ahead, outputs)
        behind.update_function_type()
        for function, old in ((ahead, forward), (behind, backward)):
            name = unique_name(self._module, f"{old.sym_name.data}_offload")
            function.properties["sym_name"] = StringAttr(name)
            Rewriter.insert_op(function, InsertPoint.after(old))
        describe_backward(behind, ahead, saved)
        return ahead, behind


def _is_moved(pair: CallPair, kind: str, index: int) -> bool:
    if kind == "argument":
        # Arguments of the program stay on the device.
        return not isinstance(pair.forward.operands[index], BlockArgument)
    users = {use.operation for use in pair.forward.results[index].uses}
    return users == {pair.backward}


def _behind(value: SSAValue, function: FuncOp) -> SSAValue:
    """
    Inserts a copy of `value` to the host, right after the op that computes `value`, and
    returns the copy.
    """
    op = OffloadOp(value)
    owner = value.owner
    place = InsertPoint.at_start(function.body.block)
    if isinstance(owner, Operation):
        place = InsertPoint.after(owner)
        if SCOPE in owner.attributes:
            op.attributes[SCOPE] = owner.attributes[SCOPE]
    Rewriter.insert_op(op, place)
    return op.y


def _fetch(backward: FuncOp, place: int, there: SSAValue) -> None:
    """
    Makes `backward` fetch its argument with index `place` from the host's memory, right
    before its first use. `there` is the value on the host.
    """
    argument = backward.args[place]
    first = next(
        (op for op in backward.body.block.ops if argument in op.operands), None
    )
    assert first is not None
    uses = list(argument.uses)
    argument = Rewriter.replace_value_with_new_type(argument, there.type)
    op = FetchOp(argument)
    if SCOPE in first.attributes:
        op.attributes[SCOPE] = first.attributes[SCOPE]
    Rewriter.insert_op(op, InsertPoint.before(first))
    for use in uses:
        use.operation.operands[use.index] = op.y
