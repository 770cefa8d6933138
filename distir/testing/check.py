"""`check_op`: checks the support that a package registers for an op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import AnyFloat, IntegerType, TensorType
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.registries import name_of
from distir.dialects.tensors import shape_of
from distir.gradients.rule import gradient_rule, is_differentiable
from distir.interpreters.joint_ops import joint_op
from distir.sharding.decompose import decompose, discard
from distir.sharding.rule import Rule, sharding_rule
from distir.testing.derivatives import check_gradient
from distir.testing.errors import OpCheckError
from distir.testing.runs import (
    check_parts,
    interpreter_for,
    is_constant,
    run_ops,
    run_split,
    verify_ops,
    whole,
)
from distir.testing.splits import (
    assignments,
    can_split,
    mesh,
    nests,
    partial_assignments,
    sample,
)
from distir.testing.torch_calls import can_run_torch, check_torch

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OpReport:
    """
    What `check_op` has checked: the number of `splits` of the op's factors, the number
    of runs with `partial` operands, and whether the `gradient` and the PyTorch
    expression (`torch`) were compared.
    """

    name: str
    splits: int
    partial: int
    gradient: bool
    torch: bool

    def __str__(self) -> str:
        parts = [
            text
            for text, is_there in (
                ("the gradient", self.gradient),
                ("the PyTorch expression", self.torch),
            )
            if is_there
        ]
        also = f"; so {'do' if len(parts) > 1 else 'does'} {' and '.join(parts)}"
        return (
            f"{self.name}: {self.splits} splits and {self.partial} runs on partial values "
            f"agree with the reference{also if parts else ''}"
        )


def check_op(
    op: Operation,
    operands: Sequence[npt.ArrayLike] | None = None,
    *,
    splits: int | None = None,
    seed: int = 0,
) -> OpReport:
    """
    Runs an op whole and under every split that its sharding rule allows on 2 and on 4
    devices, and compares the results with its reference. If the rule lets partial sums,
    maxima or minima pass, operands with such partial values are tried too. The
    gradient, if the op has one, is compared with central differences of the reference.
    The decomposition, if there is one, and the PyTorch expression, if PyTorch is
    installed, are compared with the reference too.

    - `op`: an op of any dialect on tensors of known shapes, without layouts. Sizes that
      are multiples of 4 can be split in every way. The operands may be arguments of a
      block, results of constants, or any other values of the same types.
    - `operands`: an array for each operand. By default, operands from constants have
      the constants' values, and all other operands are random: floats are normally
      distributed, and integers are 0 or 1.
    - `splits`: the largest number of splits that are tried on each mesh; None for all.
    - `seed`: the seed of random numbers.

    Raises OpCheckError if values differ. The message is one paragraph, which names the
    devices, the layouts and the first wrong element. OpCheckError is also raised if the
    op is invalid or has no sharding rule, or if the rule does not allow any split for
    these shapes. Raises DistIRError if the op has no reference.
    """
    verify_ops([op], "it")
    rule = _checked_rule(op)
    if operands is None:
        given = _random_operands(op, seed)
    elif len(operands) != len(op.operands):
        raise OpCheckError(
            f"{name_of(op)} has {len(op.operands)} operands, but check_op got "
            f"{len(operands)} arrays; give one for each"
        )
    else:
        given = [
            np.asarray(x, dtype_of(v))
            for x, v in zip(operands, op.operands, strict=True)
        ]
    plain = whole(op, given)
    _check_sizes(op, rule)
    parts = decompose(op)
    if parts is not None:
        check_parts(plain, parts)
        discard(parts)
    count, partial = 0, 0
    is_joint = joint_op.of(op) is not None
    for on in (mesh(a=2), mesh(a=4), mesh(a=2, b=2)):
        legal = [
            each
            for each in assignments(rule, on)
            if not is_joint or nests(rule, each, on)
        ]
        for assignment in legal if splits is None else sample(legal, splits, str(seed)):
            run_split(plain, on, assignment)
            count += bool(assignment)
        terms = list(partial_assignments(rule, given, on))
        for assignment, which, reduction in (
            terms if splits is None else sample(terms, splits, str(seed))
        ):
            run_split(plain, on, assignment, which, reduction)
            partial += 1
    has_gradient = gradient_rule.of(op) is not None and any(
        map(is_differentiable, op.results)
    )
    if has_gradient:
        check_gradient(op, given)
    has_torch = can_run_torch(op, [*given, *plain.results])
    if has_torch:
        check_torch(op, given, plain.results)
    return OpReport(name_of(op), count, partial, has_gradient, has_torch)


def dtype_of(value: SSAValue) -> np.dtype[Any]:
    """
    Returns the NumPy dtype of a number or of the elements of a tensor. Raises
    OpCheckError if the value is neither, or a tensor with an unknown size.
    """
    type_ = value.type
    is_tensor = isinstance(type_, TensorType)
    if is_tensor and min(type_.get_shape(), default=0) >= 0:
        return numpy_dtype(type_.element_type)
    if not is_tensor and isinstance(type_, AnyFloat | IntegerType):
        return numpy_dtype(type_)
    raise OpCheckError(
        f"check_op needs numbers, and tensors of known shapes, but an operand has type "
        f"{type_}"
    )


def _checked_rule(op: Operation) -> Rule:
    """
    Returns the sharding rule of an op. Raises OpCheckError if the op has no rule, or if
    the rule does not fit the number or the sizes of its operands and results.
    """
    function = sharding_rule.of(op)
    if function is None:
        raise OpCheckError(
            f"{name_of(op)} has no sharding rule, so that there is no split to check; give "
            f"it one with distir.extension.register_op or OpSupport"
        )
    rule = function(op)
    for kind, values, tensors in (
        ("operand", op.operands, rule.operands),
        ("result", op.results, rule.results),
    ):
        if len(values) != len(tensors):
            raise OpCheckError(
                f"{name_of(op)}: the sharding rule is for {len(tensors)} {kind}s, but the "
                f"op has {len(values)}"
            )
        for i, (value, dims) in enumerate(zip(values, tensors, strict=True)):
            if layout_of(value) is not None:
                raise OpCheckError(
                    f"{name_of(op)}: {kind} {i} has a layout; check_op chooses layouts "
                    f"itself, so give it the op without"
                )
            factors = [f for dim in dims for f in dim]
            if len(set(factors)) < len(factors):
                raise OpCheckError(
                    f"{name_of(op)}: {kind} {i} has a factor of the sharding rule twice, "
                    f"and no axis can split two of its dimensions"
                )
            shape = shape_of(value)
            sizes = [
                int(np.prod([rule.factors[f].size for f in dim])) if dim else None
                for dim in dims
            ]
            if len(dims) != len(shape) or any(
                n not in (None, size) for n, size in zip(sizes, shape, strict=True)
            ):
                raise OpCheckError(
                    f"{name_of(op)}: {kind} {i} has shape {list(shape)}, but the factors of "
                    f"its dimensions in the sharding rule have sizes {sizes}"
                )
    return rule


def _check_sizes(op: Operation, rule: Rule) -> None:
    """
    Raises OpCheckError if the rule does not allow any split, or if a factor that may be
    split has an odd size, which 2 devices cannot share.
    """
    splittable = [f for f in range(len(rule.factors)) if can_split(rule, f)]
    if not splittable:
        raise OpCheckError(
            f"{name_of(op)}: the sharding rule lets nothing be split for operands of these "
            f"shapes, so that there is nothing to check; a rule as text that does not fit "
            f"an op's shapes splits nothing"
        )
    for f in splittable:
        if rule.factors[f].size % 2:
            raise OpCheckError(
                f"{name_of(op)}: a factor that the sharding rule lets split has "
                f"{rule.factors[f].size} elements, which 2 devices cannot share; check the "
                f"op with sizes that are multiples of 4"
            )


def _random_operands(op: Operation, seed: int) -> list[Array]:
    """
    Returns a value for each operand: the value of a constant, or else random numbers.
    """
    rng = np.random.default_rng(seed)
    found: list[Array] = []
    for value in op.operands:
        dtype, shape = dtype_of(value), shape_of(value)
        if is_constant(value):
            assert isinstance(value.owner, Operation)
            found += run_ops([value.owner], {}, interpreter_for(value.owner))
        elif dtype.kind in "biu":
            found.append(rng.integers(0, 2, shape).astype(dtype))
        else:
            found.append(np.asarray(rng.standard_normal(shape)).astype(dtype))
    return found
