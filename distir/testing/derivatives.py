"""Compares gradient rules with central differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float16Type,
    Float32Type,
    FunctionType,
    ModuleOp,
    TensorType,
    f64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from distir.dialects.registries import name_of
from distir.gradients.rule import GradientBuilder, gradients_of, is_differentiable
from distir.interpreters.reference import program_runner
from distir.lowering.emitter import element_of
from distir.program import made_with
from distir.testing.errors import OpCheckError
from distir.testing.runs import is_constant

Array = npt.NDArray[Any]

ELEMENTS = 24
"""The number of elements of each operand whose derivatives are compared."""


def as_program(block: Block, results: Sequence[SSAValue]) -> ModuleOp:
    """
    Returns a module whose entry function has the body `block` and returns `results`.
    """
    block.add_op(ReturnOp(*results))
    types = FunctionType.from_lists(
        [a.type for a in block.args], [v.type for v in results]
    )
    module = ModuleOp([FuncOp("main", types, Region(block))])
    module.verify()
    return module


def backward_of(
    op: Operation, block: Block, used: frozenset[int]
) -> tuple[ModuleOp, list[int]]:
    """
    Returns the program `@main(arguments of block, gradients of results) -> gradients`
    of the op at the end of `block`. Only the results in `used` have gradients. Also
    returns, for each gradient, the index of its argument of `block`.
    """
    gradients = [
        block.insert_arg(r.type, len(block.args)) if i in used else None
        for i, r in enumerate(op.results)
    ]
    found = gradients_of(op, gradients, GradientBuilder(block.add_op, None))
    positions: list[int] = []
    results: list[SSAValue] = []
    for operand, gradient in zip(op.operands, found, strict=True):
        if gradient is not None and operand in block.args:
            positions.append(block.args.index(operand))
            results.append(gradient)
    return as_program(block, results), positions


def central_differences(
    value: Callable[[Sequence[Array]], float],
    at: Sequence[Array],
    operand: int,
    indices: Sequence[tuple[int, ...]] | None = None,
    step: float = 1e-5,
) -> Array:
    """
    Returns the derivatives of the scalar function `value` with respect to the elements
    of one operand, in the operand's shape. With `indices`, only these elements are
    computed, and all others are 0.
    """
    gradient = np.zeros_like(at[operand])
    for index in np.ndindex(*gradient.shape) if indices is None else indices:
        sides: list[float] = []
        for sign in (1, -1):
            moved = at[operand].copy()
            moved[index] += sign * step
            sides.append(value([*at[:operand], moved, *at[operand + 1 :]]))
        gradient[index] = (sides[0] - sides[1]) / (2 * step)
    return gradient


def check_gradient(op: Operation, operands: Sequence[Array]) -> None:
    """
    Compares the gradients that the rule of `op` builds with central differences of its
    reference, in 64 bits if the op can have such operands. Raises OpCheckError if they
    differ.
    """
    used = frozenset(i for i, r in enumerate(op.results) if is_differentiable(r))
    is_wide = _in_64_bits(op) is not None
    forward_op, block = _copy(op)
    types = [a.type for a in block.args]
    arguments = [
        np.asarray(x, np.float64) if is_wide and is_differentiable(v) else x
        for v, x in zip(op.operands, operands, strict=True)
        if not is_constant(v)
    ]
    forward = program_runner(as_program(block, forward_op.results))
    rng = np.random.default_rng(1)
    weights = {
        i: np.asarray(rng.standard_normal(x.shape), x.dtype)
        for i, x in enumerate(forward(arguments))
        if i in used
    }
    backward, positions = backward_of(*_copy(op), used)
    found = program_runner(backward)([*arguments, *weights.values()])
    given = dict(zip(positions, found, strict=True))

    def value(at: Sequence[Array]) -> float:
        results = forward(at)
        return float(sum(np.sum(results[i] * w) for i, w in weights.items()))

    step, tolerance = (1e-5, 1e-5) if is_wide else (1e-2, 2e-2)
    for i, argument in enumerate(arguments):
        if not isinstance(element_of(types[i]), AnyFloat):
            continue
        every = list(np.ndindex(*argument.shape))
        chosen = [every[n] for n in rng.permutation(len(every))[:ELEMENTS]]
        expected = central_differences(value, arguments, i, chosen, step)
        got = given.get(i, np.zeros_like(argument))
        for index in chosen:
            if not np.isclose(
                got[index], expected[index], rtol=tolerance, atol=tolerance
            ):
                rule = (
                    "its gradient rule gives" if i in given else "without a gradient:"
                )
                raise OpCheckError(
                    f"{name_of(op)}, argument {i}: {rule} {got[index]} at {list(index)}, "
                    f"but differences of the reference give {expected[index]}; compare the "
                    f"gradient with what the op computes"
                )


def _copy(op: Operation) -> tuple[Operation, Block]:
    """
    Returns a copy of an op in a block of its own. The copy is on 64-bit floats if the
    op allows them. Constants stay constants, and all other operands are the block's
    arguments.
    """
    wide = _in_64_bits(op)
    return _rebuilt(op, _same) if wide is None else wide


def _in_64_bits(op: Operation) -> tuple[Operation, Block] | None:
    """Returns a copy of an op on 64-bit floats, or None if its verifier refuses it."""
    copy, block = _rebuilt(op, _wider)
    try:
        for each in block.ops:
            each.verify()
    except VerifyException:
        return None
    return copy, block


def _rebuilt(
    op: Operation, typed: Callable[[Attribute], Attribute]
) -> tuple[Operation, Block]:
    block = Block()
    values: list[SSAValue] = []
    for value in op.operands:
        if is_constant(value):
            assert isinstance(value.owner, Operation)
            constant = value.owner.clone()
            block.add_op(constant)
            values.append(constant.results[0])
        else:
            values.append(block.insert_arg(typed(value.type), len(block.args)))
    copy = made_with(op, values, [typed(r.type) for r in op.results])
    block.add_op(copy)
    return copy, block


def _same(type_: Attribute) -> Attribute:
    return type_


def _wider(type_: Attribute) -> Attribute:
    """Returns a tensor type with its floats widened to 64 bits."""
    narrow = (Float32Type, Float16Type, BFloat16Type)
    if isinstance(type_, TensorType) and isinstance(type_.element_type, narrow):
        return TensorType(f64, type_.get_shape())
    return type_
