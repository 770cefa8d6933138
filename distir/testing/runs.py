"""
Runs one op whole and on several devices, and compares the results. Equal results show
that the op's sharding rule and local form agree with its reference.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.test import Test
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist import Layout, layout_of, with_layout
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.registries import load_support, name_of
from distir.errors import DistIRError
from distir.interpreters.functions import ProgramFunctions
from distir.interpreters.joint_ops import joint_op, results_on
from distir.interpreters.reference import ReferenceInterpreter
from distir.program import made_with
from distir.sharding.layout import assemble, check_layout, local_type, take_shard
from distir.sharding.local import local_form, local_ops
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Assignment, Rule, infer, layout_for, rule_for
from distir.testing.errors import OpCheckError

Array = npt.NDArray[Any]


@dataclass
class SequentialOp:
    """
    An op without layouts, with the values of its operands and results, and its sharding
    rule.
    """

    op: Operation
    operands: list[Array]
    results: list[Array]
    rule: Rule

    @cached_property
    def interpreter(self) -> ReferenceInterpreter:
        """An interpreter of single ops, with the support for the dialect of `op`."""
        return interpreter_for(self.op)


def interpreter_for(op: Operation) -> ReferenceInterpreter:
    """Returns an interpreter of single ops, with the support for the dialect of `op`."""
    load_support(name_of(op))
    return ReferenceInterpreter(ModuleOp([]))


def run_ops(
    ops: Sequence[Operation],
    values: dict[SSAValue, Any],
    interpreter: ReferenceInterpreter,
) -> list[Array]:
    """
    Evaluates ops in order and returns the results of the last op. `values` holds the
    values of the operands; the function adds the results to it. Raises OpCheckError if
    a result does not have the type that the op declares.
    """
    results: list[Array] = []
    for op in ops:
        given = tuple(values[v] for v in op.operands)
        results = list(ProgramFunctions.run_one(interpreter, op, given))
        for i, (value, array) in enumerate(zip(op.results, results, strict=True)):
            type_ = value.type
            if isinstance(type_, TensorType) and (
                type_.get_shape() != array.shape
                or numpy_dtype(type_.element_type) != array.dtype
            ):
                raise OpCheckError(
                    f"{name_of(op)}: result {i} is {array.dtype}{list(array.shape)}, but "
                    f"its type is {type_}"
                )
            values[value] = array
    return results


def whole(op: Operation, operands: Sequence[Array]) -> SequentialOp:
    """
    Runs `op`, an op without layouts, on the values `operands`. Returns the op with all
    values.
    """
    values = dict(zip(op.operands, operands, strict=True))
    results = run_ops([op], values, interpreter_for(op))
    return SequentialOp(op, list(operands), results, rule_for(op))


def check_parts(plain: SequentialOp, parts: Sequence[Operation]) -> None:
    """
    Runs `parts`, a list of ops that replaces `plain`, on the operands of `plain`.
    Raises OpCheckError if the results of the last op differ from the results of
    `plain`.
    """
    values = dict(zip(plain.op.operands, plain.operands, strict=True))
    found = run_ops(parts, values, plain.interpreter)
    for i, (got, expected) in enumerate(zip(found, plain.results, strict=True)):
        compare(got, expected, f"{name_of(plain.op)}, decomposed: result {i}")


def is_constant(value: SSAValue) -> bool:
    """
    Whether `value` is the result of a constant, which is an op without operands. Ops of
    xDSL's dialect `test`, which stand for any value, do not count as constants.
    """
    owner = value.owner
    return (
        isinstance(owner, Operation)
        and not owner.operands
        and owner.dialect_name() != Test.name
    )


def distributed(
    op: Operation, operands: Sequence[Layout], results: Sequence[Layout]
) -> tuple[Operation, Block]:
    """
    Returns a copy of `op`, an op without layouts, and the block that holds the copy.
    The operands and results of the copy have the given layouts. An operand that comes
    from a constant comes from a constant in the copy too; all other operands are
    arguments of the block.
    """
    block = Block()
    values: list[SSAValue] = []
    for value, layout in zip(op.operands, operands, strict=True):
        type_ = _laid_out(value, layout)
        if is_constant(value):
            assert isinstance(value.owner, Operation)
            constant = made_with(value.owner, [], [type_])
            block.add_op(constant)
            values.append(constant.results[0])
        else:
            values.append(block.insert_arg(type_, len(block.args)))
    types = [
        _laid_out(r, layout) for r, layout in zip(op.results, results, strict=True)
    ]
    copy = made_with(op, values, types)
    block.add_op(copy)
    return copy, block


def _laid_out(value: SSAValue, layout: Layout) -> Any:
    """
    Returns the type of a value with the given layout. A type that is not a tensor type
    is returned unchanged.
    """
    type_ = value.type
    return with_layout(type_, layout) if isinstance(type_, TensorType) else type_


def terms(
    array: Array, reduction: str, count: int, rng: np.random.Generator
) -> list[Array]:
    """
    Returns `count` arrays that reduce to `array` by `reduction`: `sum`, `max` or `min`.
    All but one are random, from `rng`.
    """
    noise = [
        rng.integers(0, 4, array.shape).astype(array.dtype) for _ in range(count - 1)
    ]
    if reduction == "sum":
        return [*noise, (array - sum(noise)).astype(array.dtype)]
    lower = [array - n if reduction == "max" else array + n for n in noise]
    return [*lower, array]


def run_split(
    plain: SequentialOp,
    on: Mesh,
    assignment: Assignment,
    partial_operands: frozenset[int] = frozenset(),
    reduction: str = "sum",
) -> None:
    """
    Runs the op `plain` on all devices of the mesh `on`, and compares the results with
    the results on one device. `assignment` has the axes that split each factor. The
    operands with the indices `partial_operands` hold partial values over the last axis,
    which are reduced by `reduction`: `sum`, `max` or `min`.

    Raises OpCheckError if the rule derives a split from the layouts that is not
    `assignment`, or if results differ. The message names the layouts. Any other error
    gets a note that names the layouts.
    """
    rule = plain.rule
    axis, count = on.axes[-1]
    over = ((axis, reduction),)
    layouts = [
        layout_for(dims, rule, assignment, on, over if i in partial_operands else ())
        for i, dims in enumerate(rule.operands)
    ]
    place = _Setting(plain.op, on, layouts)
    with _noted(place):
        inference = infer(rule, layouts, on)
        results = inference.results
        if rule.is_made_anywhere:
            results = [layout_for(dims, rule, assignment, on) for dims in rule.results]
        elif {f: s for f, s in inference.assignment.items() if s} != assignment:
            raise OpCheckError(
                f"{place}: these layouts split the factors {inference.assignment}, not "
                f"{assignment}; the sharding rule contradicts itself"
            )
        op, block = distributed(plain.op, layouts, results)
        verify_ops([op], "the op with layouts")
        if rule_for(op) != rule:
            raise OpCheckError(
                f"{place}: the sharding rule is another one than that of the whole op; it "
                f"must not depend on layouts"
            )
        for value in (*op.operands, *op.results):
            layout = layout_of(value)
            if layout is not None and isinstance(value.type, TensorType):
                check_layout(value.type.get_shape(), layout, on, op.name)
        rng = np.random.default_rng(0)
        pieces = {
            i: terms(plain.operands[i], reduction, count, rng)
            for i in sorted(partial_operands)
        }
        shards = _shards(plain, op, on, layouts, pieces, axis)
        for i, (parts, expected) in enumerate(zip(shards, plain.results, strict=True)):
            layout = results[i]
            what = _Result(place, i, layout)
            _compare_replicas(parts, layout, on, what)
            compare(assemble(parts, expected.shape, layout, on), expected, what)
    del block


def _shards(
    plain: SequentialOp,
    op: Operation,
    on: Mesh,
    layouts: Sequence[Layout],
    pieces: Mapping[int, Sequence[Array]],
    axis: str,
) -> list[list[Array]]:
    """
    Returns, for each result of `op`, the parts that the devices of the mesh `on`
    compute. `pieces` holds the partial values of operands over `axis`.
    """
    shards: list[list[Array]] = [[] for _ in plain.results]
    arguments = Block(arg_types=[local_type(v.type, {"m": on}) for v in op.operands])
    ops: Sequence[Operation] = ()
    devices: list[tuple[Operation, tuple[Array, ...]]] = []
    is_joint = joint_op.of(op) is not None
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
        if not ops or local_form.of(op) is not None:
            before = _users(arguments.args)
            ops = local_ops(op, arguments.args, {"m": on}, coordinates)
            _check_users(ops, _users(arguments.args) - before)
            verify_ops(ops, "what one device computes (give it a local form?)")
        if is_joint:
            devices.append((ops[-1], tuple(arrays)))
            continue
        values: dict[SSAValue, Any] = dict(zip(arguments.args, arrays, strict=True))
        for result, array in zip(
            shards, run_ops(ops, values, plain.interpreter), strict=True
        ):
            result.append(array)
    for of_device in results_on(on, devices) if devices else ():
        for result, array in zip(shards, of_device, strict=True):
            result.append(array)
    return shards


def _users(values: Sequence[SSAValue]) -> set[Operation]:
    return {use.operation for value in values for use in value.uses}


def _check_users(ops: Sequence[Operation], users: set[Operation]) -> None:
    """
    Raises OpCheckError unless the new `users` of an op's operands are among `ops`, the
    ops of its local form. Any other new user would remain in the operands' lists of
    users, where passes find it.
    """
    left = users - {inner for op in ops for inner in op.walk()}
    if left:
        names = ", ".join(sorted(name_of(op) for op in left))
        raise OpCheckError(
            f"{name_of(ops[-1])}: its local form makes {names} besides the ops that it "
            f"returns, and leaves it a user of the operands; erase it"
        )


def verify_ops(ops: Sequence[Operation], what: str) -> None:
    """
    Raises OpCheckError if one of the ops is invalid. The message calls the op `what`.
    """
    for op in ops:
        try:
            op.verify()
        except VerifyException as error:
            reason = str(error).partition("\n")[0]
            raise OpCheckError(f"{name_of(op)}: {what} is invalid: {reason}") from error


def _compare_replicas(
    parts: Sequence[Array], layout: Layout, on: Mesh, what: object
) -> None:
    """
    Raises OpCheckError if devices that hold the same part of a tensor computed
    different values.
    """
    used = {*layout.split_axes, *layout.partial_axes}
    first: dict[tuple[int, ...], Array] = {}
    for part, coordinates in zip(parts, on.coordinates, strict=True):
        key = tuple(c for a, c in coordinates.items() if a in used)
        if first.setdefault(key, part) is not part:
            compare(part, first[key], what)


def compare(got: Array, expected: Array, what: object) -> None:
    """
    Raises OpCheckError if two arrays differ. Floats may differ by rounding, other
    numbers must be equal. The message begins with the text of `what`.
    """
    if got.dtype == expected.dtype and np.array_equal(got, expected):
        return
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise OpCheckError(
            f"{what} is {got.dtype}{list(got.shape)}, but the reference gives "
            f"{expected.dtype}{list(expected.shape)}"
        )
    if got.dtype.kind in "fV":
        tolerance = 5e-3 if got.dtype.itemsize == 2 else 2e-5
        wide = got.astype(np.float64), expected.astype(np.float64)
        differs = ~np.isclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        differs = np.asarray(got != expected)
    if not differs.any():
        return
    where = [int(i) for i in np.argwhere(differs)[0]]
    raise OpCheckError(
        f"{what} differs from the reference in {int(differs.sum())} of {got.size} "
        f"elements: at {where} it is {got[tuple(where)]} instead of "
        f"{expected[tuple(where)]}; compare the sharding rule and the local form with what "
        f"the op computes"
    )


@dataclass(frozen=True)
class _Setting:
    """
    The mesh and the operands' layouts with which an op runs. The text of a setting is
    made only for errors, because making it is slow.
    """

    op: Operation
    mesh: Mesh
    layouts: Sequence[Layout]

    def __str__(self) -> str:
        count, op = len(self.mesh.devices), name_of(self.op)
        sizes = " x ".join(f"{axis}={size}" for axis, size in self.mesh.axes)
        given = ", ".join(
            f"operand {i} {_text(layout)}" for i, layout in enumerate(self.layouts)
        )
        return f"{op} on {count} devices ({sizes}) with {given or 'no operands'}"


@dataclass(frozen=True)
class _Result:
    """A result of an op in a setting, with the layout that the op's rule gives it."""

    place: _Setting
    index: int
    layout: Layout

    def __str__(self) -> str:
        layout = _text(self.layout)
        return (
            f"{self.place}: result {self.index}, whose layout is {layout} by the rule,"
        )


def _text(layout: Layout) -> str:
    """Returns a layout as text, without the name of its mesh."""
    return (
        str(layout).removeprefix(f"<@{layout.mesh}").removeprefix(", ")[:-1] or "whole"
    )


@contextmanager
def _noted(place: _Setting) -> Generator[None]:
    """
    A context manager that adds `place` to the errors raised inside it: to the message
    of a DistIRError, and as a note to any other error.
    """
    try:
        yield
    except DistIRError as error:
        if str(error).startswith(str(place)):
            raise
        raise OpCheckError(f"{place}: {error}") from error
    except BaseException as error:
        error.add_note(f"This happened with {place}.")
        raise
