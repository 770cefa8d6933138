"""
Structured ops of `linalg` as loops over tensors. An op is defined by an indexing map
for each operand and a body that computes one element; the op's sharding rule and
evaluation follow from the maps and the body.

A loop that indexes results is a parallel factor. Any other loop is a reduction, if the
body combines a new element with the old element of the output by a sum, a maximum or a
minimum. A loop in an expression such as `d0 + d1` (the windows of a convolution) cannot
be split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import (
    AnyFloat,
    FloatAttr,
    IntegerAttr,
)
from xdsl.interpreter import Interpreter
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)

from distir.dialects.constants import keeps_value
from distir.errors import DistIRError
from distir.foreign.arith import splat
from distir.interpreters.functions import ProgramFunctions
from distir.sharding.map_rule import (
    dims_of_maps,
    loop_sizes,
    loops_in_expressions,
)
from distir.sharding.rule import Factor, Linear, Rule

Array = npt.NDArray[Any]

REDUCTION_OF_OP = {
    "arith.addf": "sum",
    "arith.addi": "sum",
    "arith.maximumf": "max",
    "arith.maxnumf": "max",
    "arith.maxsi": "max",
    "arith.minimumf": "min",
    "arith.minnumf": "min",
    "arith.minsi": "min",
}
"""The reduction of each op that combines a new element with the old one."""

_ADDS = ("arith.addf", "arith.subf", "arith.addi", "arith.subi")
_MULTIPLIES = ("arith.mulf", "arith.muli")

_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def is_zero(value: SSAValue) -> bool:
    """
    Whether all elements of a tensor are known to be zero. Elements of `tensor.empty`
    count as zero, because they are undefined. The search for the tensor's origin looks
    through ops that only change the layout.
    """
    while isinstance(value, OpResult) and keeps_value(value.owner):
        value = value.owner.operands[0]
    if not isinstance(value, OpResult):
        return False
    op = value.owner
    if op.name in ("linalg.fill", "tensor.splat"):
        return is_zero(op.operands[0])
    if op.name != "arith.constant":
        return op.name == "tensor.empty"
    number = op.properties["value"]
    if isinstance(number, FloatAttr | IntegerAttr):
        return number.value.data == 0
    equal = splat(op)
    return equal is not None and next(iter(equal.iter_values())) == 0


@dataclass(frozen=True)
class Loops:
    """
    An op as loops over tensors.

    - `op`: the op, whose operands are its inputs followed by its outputs;
    - `maps`: for each operand, the indices of the element that an iteration reads or
      writes;
    - `reductions`: the loops that do not index the outputs;
    - `body`: the ops of one iteration, with an argument for each operand. Its last op
      returns the new elements of the outputs.
    """

    op: Operation
    maps: tuple[AffineMap, ...]
    reductions: frozenset[int]
    body: Block

    @cached_property
    def count(self) -> int:
        """The number of loops."""
        return self.maps[0].num_dims

    @cached_property
    def inputs(self) -> int:
        """The number of inputs: the operands before the outputs."""
        return len(self.op.operands) - len(self.op.results)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """
        The number of iterations of each loop, read from the operand dimensions that are
        indexed by this loop alone.
        """
        return loop_sizes([v.type for v in self.op.operands], self.maps)

    @cached_property
    def whole(self) -> frozenset[int]:
        """
        The loops that cannot be split, because an index expression computes with the
        loop's position (as in `d0 + d1`), or because the body uses the position.
        """
        found = set(loops_in_expressions(self.maps))
        for op in self.body.walk():
            if op.name == "linalg.index":
                dim = op.properties["dim"]
                assert isinstance(dim, IntegerAttr)
                found.add(dim.value.data)
        return frozenset(found)

    @cached_property
    def joined(self) -> tuple[tuple[str, SSAValue] | None, ...]:
        """
        One entry for each output: the reduction that combines the old element of the
        output with a new element, and this new element. An entry is None if the body
        does not use the old element, or uses it in a different way.
        """
        returned = self.body.last_op
        assert returned is not None
        return tuple(
            self._joined(value, self.body.args[self.inputs + i])
            for i, value in enumerate(returned.operands)
        )

    def _joined(
        self, value: SSAValue, old: BlockArgument
    ) -> tuple[str, SSAValue] | None:
        if not isinstance(value, OpResult) or len(list(old.uses)) != 1:
            return None
        reduction = REDUCTION_OF_OP.get(value.owner.name)
        if reduction is None or old not in value.owner.operands:
            return None
        first, second = value.owner.operands
        return reduction, second if first is old else first

    @property
    def is_in_place(self) -> bool:
        """Whether the body reads the old elements of the outputs."""
        return any(arg.uses for arg in self.body.args[self.inputs :])

    @cached_property
    def starts_at_zero(self) -> bool:
        """Whether all outputs are known to be zero before the loops."""
        return all(map(is_zero, self.op.operands[self.inputs :]))

    @cached_property
    def reduction(self) -> str | None:
        """
        The common reduction of all outputs. It is None if an output has no reduction,
        or if the reductions of outputs differ.
        """
        kinds = {None if j is None else j[0] for j in self.joined}
        return kinds.pop() if len(kinds) == 1 else None

    @cached_property
    def adds_to_outputs(self) -> bool:
        """
        Whether a sum is added to outputs that may not be zero. If the sum were split
        over devices, every device would add the outputs' old elements.
        """
        return self.reduction == "sum" and not self.starts_at_zero

    def rule(self) -> Rule:
        """
        Returns the sharding rule of the op. If a sum is added to outputs that may not
        be zero, only the op's decomposition can split the sum, because the
        decomposition adds the outputs once.
        """
        factors = tuple(
            Factor(n, self._kind(i), self.reduction or "sum")
            for i, n in enumerate(self.sizes)
        )
        dims = dims_of_maps(self.maps, self.sizes)
        late = (
            self.reductions - self.whole if self.adds_to_outputs else frozenset[int]()
        )
        return Rule(
            factors=factors,
            operands=dims,
            results=dims[self.inputs :],
            linear=tuple(Linear(frozenset(s)) for s in self._linear_sets()),
            decomposed=frozenset(i for i in late if factors[i].kind == "reduction"),
            flops=self._flops(),
        )

    def _kind(self, loop: int) -> Any:
        """
        Returns the kind of the factor of a loop: parallel, reduction or replicate.
        """
        if loop in self.whole:
            return "replicate"
        if loop not in self.reductions:
            return "parallel"
        if self.reduction is None or (self.adds_to_outputs and len(self.joined) > 1):
            return "replicate"
        return "reduction"

    def _flops(self) -> int:
        """
        Returns the number of floating-point operations if the loops reduce. For other
        ops the result is 0, because memory bounds their time.
        """
        if not self.reductions:
            return 0
        each = sum(
            1
            for op in self.body.ops
            for r in op.results
            if isinstance(r.type, AnyFloat) and op.operands
        )
        return each * prod(self.sizes)

    def _linear_sets(self) -> list[tuple[int, ...]]:
        """
        Returns the sets of inputs in which the results are linear, each as indices. The
        candidates are each input alone, and all inputs together.
        """
        inputs = [i for i in range(self.inputs) if self.maps[i].results]
        sets = [(i,) for i in inputs] + ([tuple(inputs)] if len(inputs) > 1 else [])
        if self.is_in_place and not (self.reduction == "sum" and self.starts_at_zero):
            return []
        return [s for s in sets if self._is_linear(s)]

    def _is_linear(self, inputs: Sequence[int]) -> bool:
        """
        Whether all new elements are linear in the elements of `inputs`: sums of these
        elements, each times a value that does not depend on `inputs`.
        """
        chosen = {self.body.args[i] for i in inputs}
        # True: linear; False: does not depend on them; None: depends otherwise.
        known: dict[SSAValue, bool | None] = {}
        for arg in self.body.args[: self.inputs]:
            known[arg] = arg in chosen
        for arg in self.body.args[self.inputs :]:
            known[arg] = True  # it starts at zero
        for op in self.body.ops:
            given = [known.get(v, False) for v in op.operands]
            known.update((r, _degree(op.name, given)) for r in op.results)
        returned = self.body.last_op
        assert returned is not None
        return all(known.get(v, False) is True for v in returned.operands)

    def run(self, interpreter: Interpreter, args: Sequence[Any]) -> tuple[Array, ...]:
        """
        Returns the outputs for the operands `args`, which are arrays of the shapes that
        the loops index. Parallel loops are evaluated as array operations. Reductions
        are too, unless there are too many iterations; reductions other than sum,
        maximum and minimum run one iteration at a time.
        """
        sizes = self._sizes_of(args)
        joins = [join for join in self.joined if join is not None]
        together = len(joins) == len(self.joined) and prod(sizes) <= 2**24
        outputs = [np.array(x) for x in args[self.inputs :]]
        steps: list[dict[int, int]] = [{}]
        if not together:
            spaces = [(d, range(sizes[d])) for d in sorted(self.reductions)]
            for d, space in spaces:
                steps = [{**step, d: i} for step in steps for i in space]
        for fixed in steps:
            grid = _grid(sizes, fixed)
            places = [
                tuple(_evaluated(e, grid) for e in indices.results)
                for indices in self.maps
            ]
            given = [
                np.asarray(x)[place] if place else np.asarray(x)
                for x, place in zip(
                    [*args[: self.inputs], *outputs], places, strict=True
                )
            ]
            values = self._values(interpreter, given, grid)
            for i, output in enumerate(outputs):
                place = places[self.inputs + i]
                if together:
                    reduction, new = joins[i]
                    over = tuple(sorted(self.reductions))
                    full = np.broadcast_to(values[new], sizes) if over else values[new]
                    found = _UFUNCS[reduction].reduce(full, axis=over, keepdims=True)
                    found = _UFUNCS[reduction](given[self.inputs + i], found)
                else:
                    returned = self.body.last_op
                    assert returned is not None
                    found = values[returned.operands[i]]
                output[place] = found
        return tuple(outputs)

    def _sizes_of(self, args: Sequence[Any]) -> tuple[int, ...]:
        """Returns the number of iterations of each loop for the operands `args`."""
        found = [1] * self.count
        for value, indices in zip(args, self.maps, strict=True):
            for size, index in zip(np.shape(value), indices.results, strict=True):
                if isinstance(index, AffineDimExpr):
                    found[index.position] = size
        return tuple(found)

    def _values(
        self, interpreter: Interpreter, given: Sequence[Array], grid: Sequence[Array]
    ) -> Mapping[SSAValue, Any]:
        """
        Returns the values of the body's ops, for all iterations of `grid` at once.
        `given` holds the elements of each operand in these iterations.
        """
        values: dict[SSAValue, Any] = dict(zip(self.body.args, given, strict=True))
        for op in self.body.ops:
            if op.name == "linalg.index":
                dim = op.properties["dim"]
                assert isinstance(dim, IntegerAttr)
                values[op.results[0]] = grid[dim.value.data]
            elif op.results:
                inner = tuple(values[v] for v in op.operands)
                found = ProgramFunctions.run_one(interpreter, op, inner)
                values.update(zip(op.results, found, strict=True))
        return values


def _degree(name: str, given: Sequence[bool | None]) -> bool | None:
    """
    Returns whether the result of the op called `name` is linear in some inputs of the
    loops (True), independent of them (False) or neither (None). `given` says the same
    for each operand of the op.
    """
    if not any(g is not False for g in given):
        return False
    if None in given:
        return None
    if name in _ADDS:
        return True if all(given) else None
    if name in _MULTIPLIES:
        return True if list(given).count(True) == 1 else None
    if name == "arith.divf":
        return True if given[0] and not given[1] else None
    return True if name == "arith.negf" else None


def _grid(sizes: Sequence[int], fixed: Mapping[int, int]) -> list[Array]:
    """
    Returns the positions of each loop as arrays that broadcast to all iterations. A
    loop in `fixed` has only the one position that `fixed` gives.
    """
    count = len(sizes)
    found: list[Array] = []
    for i, size in enumerate(sizes):
        own = np.array([fixed[i]]) if i in fixed else np.arange(size)
        found.append(own.reshape([-1 if j == i else 1 for j in range(count)]))
    return found


def _ceil_divided(x: Array, y: Array) -> Array:
    return -np.floor_divide(-x, y)


_BINARY = {
    AffineBinaryOpKind.Add: np.add,
    AffineBinaryOpKind.Mul: np.multiply,
    AffineBinaryOpKind.Mod: np.mod,
    AffineBinaryOpKind.FloorDiv: np.floor_divide,
    AffineBinaryOpKind.CeilDiv: _ceil_divided,
}


def _evaluated(expr: AffineExpr, grid: Sequence[Array]) -> Array:
    """
    Returns the values of an index expression for all iterations of `grid`. Raises
    DistIRError if the expression contains symbols.
    """
    if isinstance(expr, AffineDimExpr):
        return grid[expr.position]
    if isinstance(expr, AffineConstantExpr):
        return np.full((1,) * len(grid), expr.value)
    if isinstance(expr, AffineBinaryOpExpr):
        return _BINARY[expr.kind](
            _evaluated(expr.lhs, grid), _evaluated(expr.rhs, grid)
        )
    raise DistIRError(f"an indexing map has {expr}, which is no index of loops")
