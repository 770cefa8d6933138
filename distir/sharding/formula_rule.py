"""
The sharding rule of an op that is defined by a formula.

The dimensions of each expression are lists of atoms, indivisible factors, as in the
derivation of a kernel's rule (`kernel_propagation`). The functions in a formula unify
the atoms of their operands. A factor can be split if every result that is computed from
parts of the operands is a part of the whole result, or a term of its sum or maximum.
The same test for partial operands shows the operands through which partial sums pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation

from distir.dialects.formula import Expr, Formula
from distir.dialects.tensors import known_shape
from distir.dialects.train_ops.base import FormulaOp
from distir.sharding.kernel_propagation import Atoms
from distir.sharding.local import local_form
from distir.sharding.rule import Dim, Factor, Kind, Linear, Rule

_State = str | None
"""
The share of an expression that a device has. `_OWN` is the device's part, or the whole
if nothing is split; the name of a reduction is a term of it; None is neither.
"""

_OWN = ""

_ZERO = "zero"
"""The state of the number 0, which can be a term of any sum."""

_PASSING = ("cast", "expand", "divide_axis", "join_axes")
"""
The functions that only move or round elements. All partial values pass through them.
"""

_REDUCTIONS = {"sum": "sum", "choose": "sum", "max": "max"}
"""
The reduction that each of these functions leaves if a device has only a part of the
dimension that the function reduces.
"""


def formula_rule(op: Operation) -> Rule:
    """
    Returns the sharding rule that follows from the formula of `op`. The rule is
    replicated if the shape of an operand or result is unknown.
    """
    assert isinstance(op, FormulaOp)
    if any(known_shape(value) is None for value in (*op.operands, *op.results)):
        return Rule.replicated(op)
    return _rule(type(op), op.record, len(op.results))


@lru_cache(maxsize=1 << 13)
def _rule(op: type[FormulaOp], formula: Formula, results: int) -> Rule:
    return _Derivation(op, formula, formula.results[:results]).rule()


class _Derivation:
    """
    Derives the sharding rule of a formula. The dimensions of the formula's expressions
    are lists of atoms, indivisible factors with an integer each.
    """

    def __init__(
        self, op: type[FormulaOp], formula: Formula, results: Sequence[Expr]
    ) -> None:
        self._op, self._formula, self._results = op, formula, results
        self._atoms = Atoms()
        self._dims: dict[Expr, list[list[int]]] = {}
        self._reduced: dict[Expr, list[int]] = {}
        """The atoms over which each step of the formula reduces."""
        self._counted: dict[Expr, list[int]] = {}
        """
        For each step, the atoms whose position on the device the step must know. Only
        the op's local form can give it.
        """
        for expr in (*formula.operands, *formula.steps):
            self._dims[expr] = self._dims_of(expr)

    def _dims_of(self, expr: Expr) -> list[list[int]]:
        given = [self._dims[value] for value in expr.expressions]
        match expr.function, expr.axes:
            case "operand", _:
                return [
                    self._atoms.new(size) if size > 1 else [] for size in expr.shape
                ]
            case "sum" | "mean" | "max", axes:
                (dims,) = given
                axes = range(len(dims)) if axes is None else axes
                self._reduced[expr] = [a for axis in axes for a in dims[axis]]
                kept = [[] if d in axes else dim for d, dim in enumerate(dims)]
                if expr.keepdims:
                    return kept
                return [dim for d, dim in enumerate(kept) if d not in axes]
            case "expand", tuple(at):
                dims = iter(given[0])
                return [[] if d in at else next(dims) for d in range(len(expr.shape))]
            case "divide_axis", (axis,):
                (dims,) = given
                sizes = expr.shape[axis : axis + 2]
                outer, inner = (self._atoms.new(n) if n > 1 else [] for n in sizes)
                self._atoms.join(dims[axis], [*outer, *inner])
                self._counted[expr] = outer
                return [*dims[:axis], outer, inner, *dims[axis + 1 :]]
            case "join_axes", (axis,):
                (dims,) = given
                both = [*dims[axis], *dims[axis + 1]]
                return [*dims[:axis], both, *dims[axis + 2 :]]
            case "choose", _:
                (*rows, last), labels = given
                self._reduced[expr] = self._counted[expr] = last
                return self._joined([rows, labels])
            case "one_hot", _:
                labels, (*_, last) = given
                self._counted[expr] = last
                return [*labels, last]
            case _:
                return self._joined(given)

    def _joined(self, given: Sequence[list[list[int]]]) -> list[list[int]]:
        """
        Unifies the dimensions of tensors that are broadcast together, and returns the
        dimensions of the result.
        """
        rank = max(map(len, given), default=0)
        found: list[list[int]] = [[]] * rank
        for dims in given:
            for d, dim in enumerate(dims, rank - len(dims)):
                if found[d] and dim:
                    self._atoms.join(found[d], dim)
                found[d] = found[d] or dim
        return found

    def _atoms_of(self, expr: Expr) -> list[int]:
        return self._atoms.found([a for dim in self._dims[expr] for a in dim])

    def rule(self) -> Rule:
        """Returns the sharding rule that follows from the formula."""
        operands, results = self._formula.operands, self._results
        atoms = {expr: self._atoms_of(expr) for expr in self._dims}
        if any(len(set(found)) < len(found) for found in atoms.values()):
            # A tensor that has a factor twice cannot be split along it.
            return Rule(
                operands=tuple(((),) * len(expr.shape) for expr in operands),
                results=tuple(((),) * len(expr.shape) for expr in results),
            )
        order = dict.fromkeys(a for t in (*operands, *results) for a in atoms[t])
        number = {atom: i for i, atom in enumerate(order)}
        factors: list[Factor] = []
        decomposed: set[int] = set()
        partial: dict[int, frozenset[int]] = {}
        for atom, i in number.items():
            lacking = [r for r, expr in enumerate(results) if atom not in atoms[expr]]
            kind: Kind = "reduction" if len(lacking) == len(results) else "parallel"
            reduction = self._reduction(atom, atoms)
            if reduction is None and self._op.DECOMPOSES:
                decomposed.add(i)
            elif reduction is None:
                kind = "replicate"
            if kind == "parallel" and lacking:
                partial[i] = frozenset(lacking)
            factors.append(Factor(self._atoms.sizes[atom], kind, reduction or "sum"))

        def numbered(exprs: Sequence[Expr]) -> tuple[tuple[Dim, ...], ...]:
            return tuple(
                tuple(
                    tuple(number[a] for a in self._atoms.found(dim))
                    for dim in self._dims[expr]
                )
                for expr in exprs
            )

        return Rule(
            factors=tuple(factors),
            operands=numbered(operands),
            results=numbered(results),
            linear=tuple(self._linear()),
            decomposed=frozenset(decomposed),
            partial_results=partial,
        )

    def _reduction(self, atom: int, atoms: dict[Expr, list[int]]) -> str | None:
        """
        Returns the reduction over which results without `atom`, a factor, are partial
        if the atom is split. Returns `_OWN` if all results have the atom, and None if
        the atom cannot be split.
        """
        if atom in self._atoms.kept:
            return None
        has_local_form = local_form.get(self._op.name) is not None
        states = dict[Expr, _State](dict.fromkeys(self._formula.operands, _OWN))
        for step in self._formula.steps:
            state = _passed(step, states)
            if atom in self._atoms.found(self._reduced.get(step, ())):
                state = _REDUCTIONS.get(step.function) if state == _OWN else None
            is_counted = atom in self._atoms.found(self._counted.get(step, ()))
            if (state and atom in atoms[step]) or (is_counted and not has_local_form):
                state = None
            states[step] = state
        found = {states[expr] for expr in self._results if atom not in atoms[expr]}
        wrong = any(
            states[expr] != _OWN for expr in self._results if atom in atoms[expr]
        )
        if wrong or len(found) > 1 or not found.isdisjoint((None, _OWN)):
            return None
        return found.pop() if found else _OWN

    def _linear(self) -> Iterator[Linear]:
        """Yields the sets of operands through which partial sums pass."""
        operands, names = self._formula.operands, self._op.PARTIAL_OPERANDS
        if names is not None:
            known = [name for name, _ in self._op.get_irdl_definition().operands]
            floats = [known.index(name) for name in names]
        else:
            floats = [
                i for i, t in enumerate(operands) if isinstance(t.element, AnyFloat)
            ]
        for count in range(1, len(floats) + 1):
            for chosen in combinations(floats, count):
                states: dict[Expr, _State] = {
                    expr: "sum" if i in chosen else _OWN
                    for i, expr in enumerate(operands)
                }
                for step in self._formula.steps:
                    states[step] = _passed(step, states)
                if all(states[expr] == "sum" for expr in self._results):
                    yield Linear(frozenset(chosen))


def _passed(step: Expr, states: dict[Expr, _State]) -> _State:
    """
    Returns the state of the result of `step`, given the states of its inputs: whole, a
    part, or partial over a reduction.
    """
    given = [
        states[v] if isinstance(v, Expr) else _OWN if v else _ZERO for v in step.inputs
    ]
    if None in given:
        return None
    partial = {state for state in given if state not in (_OWN, _ZERO)}
    if not partial:
        return _OWN
    match step.function, given:
        case function, [state] if function in (*_PASSING, state):
            return state
        case "negative" | "mean", ["sum"]:
            return "sum"
        case "multiply", ["sum", ""] | ["", "sum"]:
            return "sum"
        case "divide" | "choose", ["sum", ""]:
            return "sum"
        case "add" | "subtract", ["sum", "sum"]:
            return "sum"
        case "where", ["", "sum", "sum" | "zero"] | ["", "zero", "sum"]:
            return "sum"
        case _:
            return None
