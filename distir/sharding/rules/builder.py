"""
Helpers for writing sharding rules: they make factors, and address the operands of ONNX
ops by their position in the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from distir.dialects.constants import constant_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import rank_of, shape_of
from distir.errors import DistIRError
from distir.program import describe
from distir.sharding.rule import Dim, Factor, Kind, Linear, Rule, sharding_rule

Dims = tuple[Dim, ...]
"""The factors of each dimension of one operand or result."""

SUM = frozenset({"sum"})
ANY = frozenset({"sum", "max", "min"})
"""
All reductions. Partial values of any of them pass through an op that only moves
elements.
"""

RuleOf = Callable[[Any], Rule]
"""A function from an op of one class to its rule."""


def _rules_of(dialect: str) -> Callable[..., Callable[[RuleOf], RuleOf]]:
    """
    Returns a decorator that registers rules for ops of the dialect `dialect`. Ops with
    unknown shapes are replicated.
    """

    def named(*names: str) -> Callable[[RuleOf], RuleOf]:
        def register(function: RuleOf) -> RuleOf:
            def guarded(op: Operation) -> Rule:
                known = _has_known_shapes(op)
                return function(op) if known else Rule.replicated(op)

            sharding_rule(*(f"{dialect}.{name}" for name in names))(guarded)
            return function

        return register

    return named


onnx_rule = _rules_of("onnx")
"""
Registers the rule of the ONNX operators with the given names (without `onnx.`). The
rule only gets ops on tensors of known shapes. Any other op is replicated.
"""

train_rule = _rules_of("train")
"""
Registers the rule of the ops of the `train` dialect with the given names (without
`train.`). The rule only gets ops on tensors of known shapes. Any other op is
replicated.
"""


def _has_known_shapes(op: Operation) -> bool:
    for value in (*op.operands, *op.results):
        # Not `isinstance`, which is slow where the answer is no; the class is final.
        if type(value.type) is not TensorType or min(shape_of(value), default=0) < 0:
            return False
    return True


def whole(value: SSAValue | None) -> Dims:
    """
    Returns the dimensions of a value, without factors, so that no axis may split it.
    """
    return () if value is None else ((),) * rank_of(value.type)


def normalized_axis(axis: int, rank: int) -> int:
    """Returns the index, from 0, of an axis that may be negative."""
    return axis + rank if axis < 0 else axis


def attribute_axis(op: OnnxOp, rank: int) -> int:
    """Returns the index, from 0, of the dimension in the attribute `axis`."""
    return normalized_axis(op.attribute("axis"), rank)


def constant_operand(op: OnnxOp, index: int) -> npt.NDArray[Any] | None:
    """
    Returns the value of the input at schema position `index`, or None if the input is
    omitted or not a known constant.
    """
    value = op.input(index)
    return None if value is None else constant_of(value)


def constant_axes(op: OnnxOp, index: int, rank: int) -> list[int] | None:
    """
    Returns the axes, counted from 0, that the input at schema position `index` lists.
    Returns None if they are unknown. Raises DistIRError if a tensor of rank `rank`
    lacks an axis; type inference would miss it, because it only sees constants that are
    direct operands.
    """
    axes = constant_operand(op, index)
    if axes is None:
        return None
    for axis in axes.reshape(-1).tolist():
        if not -rank <= axis < rank:
            raise DistIRError(
                f"{describe(op)} names axis {axis}, but its operand has {rank} dimensions"
            )
    return [normalized_axis(axis, rank) for axis in axes.reshape(-1).tolist()]


class RuleBuilder:
    """
    Collects the factors of a rule and builds it. Operands of an ONNX op are addressed
    by their schema position; `rule` drops omitted operands.
    """

    def __init__(self, op: Operation):
        self.op = op
        self._factors: list[Factor] = []

    def factor(self, size: int, kind: Kind = "parallel", reduction: str = "sum") -> Dim:
        """
        Adds a factor of `size` elements, and returns a dimension with that factor. A
        size of 1 or less gets no factor.
        """
        if size <= 1:
            return ()
        self._factors.append(Factor(size, kind, reduction))
        return (len(self._factors) - 1,)

    def factors(self, sizes: Sequence[int], kind: Kind = "parallel") -> Dims:
        """Adds a factor for each size, and returns one dimension per size."""
        return tuple(self.factor(size, kind) for size in sizes)

    def whole_along(self, sizes: Sequence[int], axes: Collection[int]) -> Dims:
        """
        Adds a factor for each size, and returns one dimension per size. The dimensions
        `axes` must not be split.
        """
        return tuple(
            self.factor(size, "replicate" if axis in axes else "parallel")
            for axis, size in enumerate(sizes)
        )

    def size(self, dim: Dim) -> int:
        """Returns the number of elements of the dimension `dim`."""
        return prod(self._factors[f].size for f in dim)

    def aligned(self, value: SSAValue | None, target: Dims) -> Dims:
        """
        Returns the dimensions of a value that broadcasts against the dimensions
        `target`. The last dimensions are aligned with each other. A dimension whose
        size differs has no factors.
        """
        sizes = shape_of(value)
        padded = ((),) * (len(sizes) - len(target)) + tuple(target)
        dims = padded[len(padded) - len(sizes) :]
        return tuple(
            dim if self.size(dim) == size else ()
            for size, dim in zip(sizes, dims, strict=True)
        )

    def rule(
        self,
        inputs: Mapping[int, Dims] | Sequence[Dims],
        results: Sequence[Dims],
        *,
        linear: Sequence[Sequence[int]] = (),
        reductions: frozenset[str] = SUM,
        decomposed: Sequence[Dim] = (),
        reduced: Mapping[int, Sequence[Dim]] | None = None,
        flops: int = 0,
        recomputed: int = 0,
    ) -> Rule:
        """
        Returns the sharding rule.

        - `inputs`: the dimensions of operands by schema position; an operand without an
          entry is needed whole;
        - `results`: the dimensions of the results;
        - `linear`: groups of schema positions through which partial values pass, if one
          of `reductions` completes them;
        - `decomposed`: dimensions that only the op's decomposition can split;
        - `reduced`: for each result, the parallel dimensions over which it is a sum;
        - `flops`: floating-point operations of the whole op; `recomputed`: the part of
          these operations that repeats work of the forward pass.
        """
        known = inputs if isinstance(inputs, Mapping) else dict(enumerate(inputs))
        op = self.op
        given = op.operands
        positions = [*range(len(given))]
        if isinstance(op, OnnxOp):
            positions = [op.operand_position(index) for index in positions]
        sums: dict[int, set[int]] = {}
        for result, dims in (reduced or {}).items():
            for factor in (f for dim in dims for f in dim):
                sums.setdefault(factor, set()).add(result)
        index_of = {position: index for index, position in enumerate(positions)}
        operands = tuple(
            known[position] if position in known else whole(value)
            for position, value in zip(positions, given, strict=True)
        )
        return Rule(
            factors=tuple(self._factors),
            operands=operands,
            results=tuple(results[: len(op.results)]),
            linear=tuple(
                Linear(frozenset(index_of[p] for p in group), reductions)
                for group in linear
                if all(p in index_of for p in group)
            ),
            decomposed=frozenset(f for dim in decomposed for f in dim),
            partial_results={f: frozenset(r) for f, r in sums.items()},
            flops=flops,
            recomputed=recomputed,
        )

    def contraction_flops(self) -> int:
        """
        Returns the number of floating-point operations of a contraction: one
        multiplication and one addition for each combination of factor values.
        """
        return 2 * prod(f.size for f in self._factors)
