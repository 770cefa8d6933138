"""
Runs one op sequentially and distributed: the proof that its rule and local form agree
with what the op computes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp, NoneType, TensorType
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.collective_ops.per_rank import CoordinateOp
from distir.dialects.dist import Layout, Shard, layout_of, with_layout
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import (
    constant_attr,
    element_type_of_dtype,
    numpy_dtype,
    tensor_type,
)
from distir.interpreters import onnx_evaluator
from distir.interpreters.joint_ops import joint_op, results_on
from distir.interpreters.reference import ReferenceInterpreter
from distir.sharding.layout import (
    assemble,
    check_layout,
    joint_run,
    local_type,
    take_shard,
)
from distir.sharding.local import local_form, local_ops
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Rule, infer, layout_for, rule_for
from support.cases import named
from support.thoroughness import IS_THOROUGH

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """
    One op on concrete inputs, by schema position; None is omitted. Inputs in `constants`
    come from an onnx.Constant, the others are arguments. `name` is that of an ONNX
    operator, or of any op that `make` builds, with typed results, from the operands.
    """

    name: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    results: int = 1
    label: str = ""
    make: Callable[[Sequence[SSAValue]], Operation] | None = None

    def __str__(self) -> str:
        shapes = "x".join(
            "none" if a is None else str(list(a.shape)).replace(" ", "")
            for a in self.inputs
        )
        return f"{self.name}-{self.label or shapes}"


def of_each_op(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Returns the cases of each op, by its name."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.name, []).append(case)
    return found


@cache
def _interpreter() -> ReferenceInterpreter:
    """One that no op of a program needs."""
    return ReferenceInterpreter(ModuleOp([]))


def evaluate(op: Operation, inputs: Sequence[Array]) -> list[Array]:
    """Returns the results of one op of the per-rank form."""
    if isinstance(op, CoordinateOp):
        return [np.array(op.index.value.data, dtype=np.int64)]
    if not isinstance(op, OnnxOp):
        return list(_interpreter().run_op(op, tuple(inputs)))
    given = iter(inputs)
    by_position = [None if v is None else next(given) for v in op.input_values]
    return [np.asarray(r) for r in onnx_evaluator.evaluate(op, by_position)]


def run_block(ops: Sequence[Operation], env: dict[SSAValue, Array]) -> list[Array]:
    """
    Evaluates ops in order, comparing the types of what they give; returns the results of
    the last one.
    """
    results: list[Array] = []
    for op in ops:
        results = evaluate(op, [env[v] for v in op.operands])
        for value, array in zip(op.results, results, strict=True):
            assert isinstance(value.type, TensorType)
            assert value.type.get_shape() == array.shape, f"{op}: got {array.shape}"
            assert numpy_dtype(value.type.element_type) == array.dtype, f"{op}"
            env[value] = array
    return results


@dataclass
class Sequential:
    """A case as an op of the sequential form, and what it computes."""

    case: Case
    op: Operation
    operands: list[Array]
    results: list[Array]
    rule: Rule


def typed(array: Array) -> TensorType[Any]:
    return tensor_type(array.shape, element_type_of_dtype(array.dtype))


def build(
    case: Case,
    operand_layouts: Sequence[Layout] | None = None,
    result_types: Sequence[Any] | None = None,
) -> tuple[Operation, Block]:
    """
    Returns the op, whose operands are arguments of a block or constants, with these
    layouts.
    """
    block = Block()
    values: list[SSAValue | None] = []
    layouts = iter(operand_layouts or [])
    for position, array in enumerate(case.inputs):
        if array is None:
            values.append(None)
            continue
        type_ = typed(array)
        if operand_layouts is not None:
            type_ = with_layout(type_, next(layouts))
        if position in case.constants:
            constant = operator("Constant").build_op(
                [], [type_], {"value": constant_attr(array)}
            )
            block.add_op(constant)
            values.append(constant.results[0])
        else:
            values.append(block.insert_arg(type_, len(block.args)))
    if case.make is not None:
        op = case.make([v for v in values if v is not None])
        if result_types is not None:
            op = type(op).create(
                operands=list(op.operands),
                result_types=list(result_types),
                properties=op.properties.copy(),
            )
        block.add_op(op)
        return op, block
    # Types that are not known yet, so that nothing is checked against them.
    types = result_types or [NoneType()] * case.results
    op = operator(case.name).build_op(values, types, case.attributes)
    block.add_op(op)
    return op, block


def sequential(case: Case) -> Sequential:
    op, _ = build(case)
    operands = [a for a in case.inputs if a is not None]
    results = evaluate(op, operands)
    op, block = build(case, None, [typed(r) for r in results])
    op.verify()
    sequential = Sequential(case, op, operands, results, rule_for(op))
    _KEEP.append(block)
    return sequential


_KEEP: list[Block] = []


@cache
def mesh(**axes: int) -> Mesh:
    count = int(np.prod(list(axes.values())))
    return Mesh("m", tuple(axes.items()), tuple(range(count)))


Assignment = dict[int, tuple[Shard, ...]]


def shards_of(size: int, axis: str, parts: int) -> Iterator[Shard]:
    """Yields every split of that many elements over one axis."""
    if size % parts == 0:
        yield Shard(axis)
        for run in range(1, size // parts):
            if size % (run * parts) == 0:
                yield Shard(axis, run)


def can_split(rule: Rule, factor: int) -> bool:
    return rule.factors[factor].kind != "replicate" and factor not in rule.decomposed


def assignments(rule: Rule, on: Mesh) -> Iterator[Assignment]:
    """
    Yields every legal split of one or two factors over the axes of a mesh with two axes.
    """
    factors = [f for f in range(len(rule.factors)) if can_split(rule, f)]
    (a, m), (b, n) = on.axes
    yield {}
    for f in factors:
        size = rule.factors[f].size
        for axis, parts in on.axes:
            for shard in shards_of(size, axis, parts):
                yield {f: (shard,)}
        for first in shards_of(size, a, m):
            for second in shards_of(size // m, b, n):
                yield {f: (first, second)}
        if size % (m * n) == 0:
            yield {f: (Shard(b), Shard(a))}
        for g in factors:
            if g != f:
                for first in shards_of(size, a, m):
                    for second in shards_of(rule.factors[g].size, b, n):
                        yield {f: (first,), g: (second,)}


def partial_assignments(
    plain: Sequential, on: Mesh
) -> Iterator[tuple[Assignment, frozenset[int], str]]:
    """
    Yields combinations of partial operands over the second axis, and of what may be split
    over the first.
    """
    rule = plain.rule
    (a, m), _ = on.axes
    for linear in rule.linear:
        if any(plain.operands[i].dtype == bool for i in linear.operands):
            continue
        for monoid in sorted(linear.monoids):
            yield {}, linear.operands, monoid
            for f, factor in enumerate(rule.factors):
                # A sum over one axis and a maximum over another do not commute.
                if factor.kind == "reduction" and factor.monoid != monoid:
                    continue
                if can_split(rule, f) and factor.size % m == 0:
                    yield {f: (Shard(a),)}, linear.operands, monoid


def terms(
    array: Array, monoid: str, count: int, rng: np.random.Generator
) -> list[Array]:
    """Returns arrays that reduce to `array`."""
    noise = [
        rng.integers(0, 4, array.shape).astype(array.dtype) for _ in range(count - 1)
    ]
    if monoid == "sum":
        return [*noise, (array - sum(noise)).astype(array.dtype)]
    lower = [array - n if monoid == "max" else array + n for n in noise]
    return [*lower, array]


def run_distributed(
    plain: Sequential,
    on: Mesh,
    assignment: Assignment,
    partial_operands: frozenset[int] = frozenset(),
    monoid: str = "sum",
) -> None:
    """Runs the op on every device and compares with the sequential results."""
    case, rule = plain.case, plain.rule
    axis, count = on.axes[1]
    over = ((axis, monoid),)
    layouts = [
        layout_for(dims, rule, assignment, on, over if i in partial_operands else ())
        for i, dims in enumerate(rule.operands)
    ]
    inference = infer(rule, layouts, on)
    split = {f: s for f, s in inference.assignment.items() if s}
    assert split == assignment
    result_types = [
        with_layout(typed(r), layout)
        for r, layout in zip(plain.results, inference.results, strict=True)
    ]
    op, block = build(case, layouts, result_types)
    op.verify()
    assert rule_for(op) == rule
    for value in (*op.operands, *op.results):
        layout = layout_of(value)
        assert layout is not None and isinstance(value.type, TensorType)
        check_layout(value.type.get_shape(), layout, on, op.name)
    rng = np.random.default_rng(0)
    pieces = {
        i: terms(plain.operands[i], monoid, count, rng)
        for i in sorted(partial_operands)
    }
    shards: list[list[Array]] = [[] for _ in plain.results]
    types = [local_type(v.type, {"m": on}) for v in op.operands]
    local_block = Block(arg_types=types)
    ops: Sequence[Operation] = ()
    devices: list[tuple[Operation, tuple[Array, ...]]] = []
    for coordinates in on.coordinates:
        arrays = [
            take_shard(
                pieces[i][coordinates[axis]] if i in pieces else array,
                layout.without_partial([axis]),
                on,
                coordinates,
            )
            for i, (array, layout) in enumerate(
                zip(plain.operands, layouts, strict=True)
            )
        ]
        if not ops or local_form.get(op.name) is not None:
            ops = local_ops(op, local_block.args, {"m": on}, coordinates)
            for local in ops:
                local.verify()
        if joint_op.get(op.name) is not None:
            devices.append((ops[-1], tuple(arrays)))
            continue
        env = dict(zip(local_block.args, arrays, strict=True))
        for result, array in zip(shards, run_block(ops, env), strict=True):
            result.append(array)
    for of_device in results_on(on, devices) if devices else ():
        for result, array in zip(shards, of_device, strict=True):
            result.append(array)
    for i, expected in enumerate(plain.results):
        layout = inference.results[i]
        check_replicas(shards[i], layout, on)
        got = assemble(shards[i], expected.shape, layout, on)
        compare(got, expected)
    del block


SAMPLES = 20 if IS_THOROUGH else 4
"""
Splits that are run per case, out of all legal ones: on each of two meshes, but in `make test`
on both together.
"""


def assert_splits(plain: Sequential) -> None:
    """Runs the op under splits that its rule allows, on two meshes."""
    first, second = (
        [(on, assignment) for assignment in assignments(plain.rule, on)]
        for on in (mesh(a=2, b=3), mesh(a=2, b=2))
    )
    for every in (first, second) if IS_THOROUGH else (first + second,):
        for on, assignment in sample(every, SAMPLES, str(plain.case)):
            if joint_op.get(plain.op.name) and not nests(plain.rule, assignment, on):
                continue
            with named(assignment):
                run_distributed(plain, on, assignment)


def nests(rule: Rule, assignment: Assignment, on: Mesh) -> bool:
    """Whether one collective over all axes of a factor can gather it."""
    try:
        for factor, shards in assignment.items():
            joint_run(rule.factors[factor].size, shards, on)
    except ValueError:
        return False
    return True


def assert_partial_operands(plain: Sequential) -> None:
    """
    Runs the op with operands that are terms, where it is linear in them: in `make test` with
    nothing else split, and with a sample of what may be.
    """
    on = mesh(a=2, b=3)
    cases = list(partial_assignments(plain, on))
    if not IS_THOROUGH:
        split = [case for case in cases if case[0]]
        cases = [case for case in cases if not case[0]]
        cases += sample(split, SAMPLES, str(plain.case))
    for assignment, operands, monoid in cases:
        with named((assignment, operands, monoid)):
            run_distributed(plain, on, assignment, operands, monoid)


def check_replicas(parts: Sequence[Array], layout: Layout, on: Mesh) -> None:
    """Checks that devices which hold the same part agree on it."""
    used = {*layout.split_axes, *layout.partial_axes}
    first: dict[tuple[int, ...], Array] = {}
    for part, coordinates in zip(parts, on.coordinates, strict=True):
        key = tuple(c for a, c in coordinates.items() if a in used)
        if first.setdefault(key, part) is not part:
            compare(part, first[key])


def compare(got: Array, expected: Array) -> None:
    assert got.dtype == expected.dtype
    if np.array_equal(got, expected):  # nearly always, and much faster than the others
        return
    if got.dtype.kind in "fV":
        kind = np.float64
        tolerance = 5e-3 if got.dtype.itemsize == 2 else 2e-5
        np.testing.assert_allclose(
            got.astype(kind), expected.astype(kind), rtol=tolerance, atol=tolerance
        )
    else:
        np.testing.assert_array_equal(got, expected)


def sample(items: Sequence[Any], count: int, seed: str) -> list[Any]:
    """Returns at most that many items, the first one among them, always the same."""
    if len(items) <= count:
        return list(items)
    return [items[0], *random.Random(seed).sample(list(items[1:]), count - 1)]
