"""
Which bundles a function may empty once it has what is in them.

Whoever calls a function of Python holds its arguments until it returns. A bundle that nobody
needs behind a call is therefore emptied by the callee, so that what a layer's forward saved is
freed value by value while its backward goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ModuleOp, TupleType, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.lowering.rewrites.bundles import UnpackOp
from distir.program import functions, reachable_functions, return_op


def release_bundles(module: ModuleOp) -> None:
    """Marks every `torch.unpack` of a bundle that all callers give away for good."""
    ownership = _Ownership(module)
    for function in ownership.functions:
        for op in function.body.block.ops:
            if (
                isinstance(op, UnpackOp)
                and isinstance(op.input, BlockArgument)
                and op.input not in ownership.borrowed
                and len(list(op.input.uses)) == 1
            ):
                op.properties["releases"] = UnitAttr()


class _Ownership:
    """
    The bundles of a program. `borrowed` are those that their function must leave as they are,
    as others may look into them: at first none, until nothing more is found. `escaping` are
    arguments that a function gives back or puts into another bundle.
    """

    def __init__(self, module: ModuleOp):
        self.functions = reachable_functions(module)  # callees first
        self.known = functions(module)
        self.places: dict[Operation, int] = {}
        self.escaping: set[SSAValue] = set()
        for function in self.functions:
            self.places.update({op: i for i, op in enumerate(function.body.block.ops)})
            self.escaping |= set(filter(self._escapes, function.args))
        self.borrowed: set[SSAValue] = set()
        changed = True
        while changed:
            found = {v for f in self.functions for v in self._found(f)}
            changed = not found <= self.borrowed
            self.borrowed |= found

    def _escapes(self, bundle: SSAValue) -> bool:
        return _is_bundle(bundle) and any(
            self._keeps(use.operation, bundle) for use in bundle.uses
        )

    def _keeps(self, user: Operation, bundle: SSAValue) -> bool:
        """Whether an op that uses a bundle makes it reachable in another way."""
        if isinstance(user, CallOp):
            given = zip(user.operands, self._callee(user).args, strict=True)
            return any(v is bundle and a in self.escaping for v, a in given)
        return not isinstance(user, UnpackOp)

    def _callee(self, call: CallOp) -> FuncOp:
        return self.known[call.callee.string_value()]

    def _found(self, function: FuncOp) -> Iterator[SSAValue]:
        """What is borrowed as far as the calls and bundles of a function tell."""
        for op in function.body.block.ops:
            if isinstance(op, UnpackOp):
                yield from filter(_is_bundle, op.outputs)
            elif isinstance(op, CallOp):
                callee = self._callee(op)
                for operand, argument in zip(op.operands, callee.args, strict=True):
                    if _is_bundle(operand) and not self._gives_away(op, operand):
                        yield argument
                returned = return_op(callee).operands
                for result, value in zip(op.results, returned, strict=True):
                    if _is_bundle(value) and not self._is_given_back(value):
                        yield result

    def _gives_away(self, call: CallOp, bundle: SSAValue) -> bool:
        """Whether nobody needs a bundle behind this call."""
        users = [use.operation for use in bundle.uses]
        others = [op for op in users if op is not call]
        return (
            bundle not in self.borrowed
            and len(users) == len(others) + 1
            and all(self.places[op] < self.places[call] for op in others)
            and not any(self._keeps(op, bundle) for op in others)
        )

    def _is_given_back(self, value: SSAValue) -> bool:
        """Whether the caller alone has what a function returns."""
        users = [use.operation for use in value.uses]
        others = [op for op in users if not isinstance(op, ReturnOp)]
        return (
            value not in self.borrowed
            and len(users) == len(others) + 1
            and not any(self._keeps(op, value) for op in others)
        )


def _is_bundle(value: SSAValue) -> bool:
    return isinstance(value.type, TupleType)
