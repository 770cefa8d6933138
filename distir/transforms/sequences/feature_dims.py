"""
Finds the dimensions of values that are features: results of a product with a parameter
matrix, or parts of such a dimension, such as the heads of queries. All other dimensions
come from the inputs: samples and tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp
from distir.dialects.tensors import rank_of, shape_of
from distir.program import arguments_of, entry_function, functions, return_op
from distir.sharding.rule import Dim, rule_for


class Origin(IntEnum):
    """
    The origin of a dimension. If a dimension has several origins, the origin with the
    greatest number is taken.
    """

    UNKNOWN = 0
    FEATURES = 1
    INPUT = 2


@dataclass(frozen=True)
class _Origins:
    """
    The origins of a value's dimensions. `is_weight` tells whether the value depends on
    parameters alone.
    """

    dims: tuple[Origin, ...]
    is_weight: bool

    def joined(self, other: _Origins) -> _Origins:
        dims = tuple(max(a, b) for a, b in zip(self.dims, other.dims, strict=True))
        return _Origins(dims, self.is_weight and other.is_weight)


_Signature = tuple[_Origins, ...]


@dataclass
class FeatureDims:
    """
    The origins of the dimensions of all values of a program, derived from the sharding
    rules of the ops. If calls of a function pass values with different origins, the
    last of these in the order of `Origin` is taken.
    """

    module: ModuleOp
    _found: dict[SSAValue, _Origins] = field(default_factory=dict[SSAValue, _Origins])
    _called: dict[tuple[str, _Signature], _Signature] = field(
        default_factory=dict[tuple[str, _Signature], _Signature]
    )

    def __post_init__(self) -> None:
        entry = entry_function(self.module)
        self._functions = functions(self.module)
        self._run(
            entry,
            [
                _all(
                    argument.value,
                    Origin.INPUT if argument.role == "input" else Origin.UNKNOWN,
                    argument.role,
                )
                for argument in arguments_of(entry)
            ],
        )

    def of(self, value: SSAValue) -> tuple[Origin, ...]:
        """
        Returns the origin of each dimension of a tensor. All origins are unknown in a
        function that is not called.
        """
        found = self._found.get(value)
        unknown = (Origin.UNKNOWN,) * len(shape_of(value.type))
        return unknown if found is None else found.dims

    def _run(self, function: FuncOp, arguments: Sequence[_Origins]) -> _Signature:
        """
        Walks through a function and returns the origins of the function's results.
        `arguments` has the origins of its arguments.
        """
        now: dict[SSAValue, _Origins] = dict(
            zip(function.body.block.args, arguments, strict=True)
        )
        end = return_op(function)
        for op in function.body.block.ops:
            operands = [now[v] for v in op.operands]
            if op is not end:
                now.update(zip(op.results, self._through(op, operands), strict=True))
        for value, origins in now.items():
            known = self._found.get(value)
            self._found[value] = origins if known is None else known.joined(origins)
        return tuple(now[v] for v in end.operands)

    def _through(
        self, op: Operation, operands: Sequence[_Origins]
    ) -> Sequence[_Origins]:
        if isinstance(op, CallOp):
            name = op.callee.string_value()
            key = name, tuple(operands)
            if key not in self._called:
                self._called[key] = self._run(self._functions[name], operands)
            return self._called[key]
        if isinstance(op, ConstrainOp):
            return operands
        return _results(op, operands)


def _all(value: SSAValue, origin: Origin, role: str) -> _Origins:
    rank = rank_of(value.type)
    return _Origins((origin,) * rank, role != "input")


def _results(op: Operation, operands: Sequence[_Origins]) -> list[_Origins]:
    """
    Returns the origin of each dimension of the results of `op`, given the origins of
    the operands. A dimension that comes from a weight alone, such as the columns of a
    product, is a feature dimension.
    """
    rule = rule_for(op)
    is_weight = all(o.is_weight for o in operands)
    by_factor: dict[int, Origin] = {}
    passed = {
        f
        for dims, origins in zip(rule.operands, operands, strict=True)
        if not origins.is_weight
        for dim in dims
        for f in dim
    }
    for dims, origins in zip(rule.operands, operands, strict=True):
        for dim, origin in zip(dims, origins.dims, strict=True):
            for f in dim:
                makes = rule.flops and origins.is_weight and f not in passed
                own = Origin.FEATURES if makes and not is_weight else origin
                by_factor[f] = max(by_factor.get(f, Origin.UNKNOWN), own)

    def of(dim: Dim) -> Origin:
        found = [by_factor.get(f, Origin.UNKNOWN) for f in dim]
        return max(found, default=Origin.UNKNOWN)

    return [_Origins(tuple(map(of, dims)), is_weight) for dims in rule.results]
