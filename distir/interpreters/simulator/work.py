"""The work of an op on one device, derived from its sharding rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from xdsl.ir import Operation

from distir.dialects.dist import Layout, layout_of
from distir.errors import DistIRError
from distir.program import describe
from distir.sharding.mesh import Mesh
from distir.sharding.rule import BY_ITSELF, Rule, infer, rule_for


class Product(NamedTuple):
    """
    `batch` products of an m x k matrix and a k x n matrix. `rows` gives, for the two
    matrices and the result, the number of elements in a row in memory. If the first
    matrix is stored transposed, its rows have m elements.
    """

    batch: int
    m: int
    n: int
    k: int
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Work:
    """
    The floating-point operations of an op on one device of its mesh. `rule` is the op's
    sharding rule. `parts` maps each split factor of the rule to its number of parts; a
    missing factor is not split.
    """

    rule: Rule
    parts: Mapping[int, int]

    @staticmethod
    def of(op: Operation, mesh: Mesh | None, rule: Rule | None = None) -> Work:
        """
        Returns the work of an op on one device of `mesh`, or, if `mesh` is None, on the
        only device of a sequential program. `rule` is the op's sharding rule, if the
        caller knows it. Raises DistIRError if the operands' layouts do not fit the
        rule.
        """
        rule = rule_for(op) if rule is None else rule
        if mesh is None or not rule.flops:
            return Work(rule, {})
        whole = Layout(mesh.name)
        layouts = [layout_of(v) or whole for v in op.operands]
        try:
            inference = infer(rule, layouts, mesh)
        except DistIRError as error:
            raise DistIRError(
                f"{describe(op)}: {error}; run verify-distribution to find every such op"
            ) from error
        parts = {
            factor: prod(mesh.size(shard.axis) for shard in shards)
            for factor, shards in inference.assignment.items()
            if shards
        }
        if rule.own_axes:
            parts[BY_ITSELF] = rule.parts_on(mesh)
        return Work(rule, parts)

    @cached_property
    def flops(self) -> float:
        """
        The number of floating-point operations; 0 for ops that are bound by memory.
        """
        if not self.rule.flops:
            return 0
        return self.rule.flops / prod(self.parts.values())

    @property
    def recomputed(self) -> float:
        """
        The share of the operations, from 0 to 1, in which a gradient repeats work of
        the forward pass.
        """
        return self.rule.recomputed / self.rule.flops if self.rule.recomputed else 0.0

    @cached_property
    def product(self) -> Product:
        """
        The op as a product of its first two operands as matrices. Factors that the
        results lack form `k`, and factors of both operands and the results form
        `batch`.
        """
        rule = self.rule
        first, second = (
            {f for dim in operand for f in dim} for operand in rule.operands[:2]
        )
        sizes = [1, 1, 1, 1]
        for factor in range(len(rule.factors)):
            if factor not in rule.result_factors:
                place = 3
            elif factor in first and factor in second:
                place = 0
            else:
                place = 2 if factor in second else 1
            sizes[place] *= self.size(factor)
        lying = (*rule.operands[:2], *rule.results[:1])
        rows = (prod(map(self.size, dims[-1])) for dims in lying if dims)
        batch, m, n, k = sizes
        return Product(batch, m, n, k, tuple(rows))

    def size(self, factor: int) -> int:
        """Returns the size of a factor of the rule on one device."""
        return self.rule.factors[factor].size // self.parts.get(factor, 1)
