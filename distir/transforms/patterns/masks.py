"""Derives facts about attention masks: whether they are finite, learned or causal."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, BlockArgument, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import SAME_VALUES, SELECTIONS, SUMS
from distir.dialects.tensors import known_shape
from distir.program import argument_roles, calls_of
from distir.transforms.patterns.attention_scores import Fill, Mask, Scaled
from distir.transforms.patterns.known_arrays import KnownArrays, once
from distir.transforms.patterns.match import array_of, element, is_finite_constant

_FINITE_IF_OPERANDS_ARE = (
    SAME_VALUES | SELECTIONS | SUMS | {"onnx.Mul", "onnx.Neg", "onnx.Where"}
)


def is_finite(value: SSAValue, depth: int = 64) -> bool:
    """
    Whether the ops that compute `value` prove that no element is minus infinity. This
    is so for finite constants, integers, Booleans and values computed from these. The
    proof follows arguments of functions to the operands of calls, and at most `depth`
    ops in a row.
    """
    if is_finite_constant(value):
        return True
    kind = str(element(value))
    if kind.startswith(("i", "ui", "si")):
        return True
    if depth == 0:
        return False
    owner = value.owner
    if isinstance(owner, Block):
        given = _given(value)
        return bool(given) and all(is_finite(v, depth - 1) for v in given)
    if isinstance(owner, CollectiveOp) and not owner.REDUCES:
        return is_finite(owner.source, depth - 1)
    if not isinstance(owner, OnnxOp):
        return False
    if owner.name not in _FINITE_IF_OPERANDS_ARE:
        return False
    return all(is_finite(v, depth - 1) for v in owner.operands)


def is_learned(value: SSAValue) -> bool:
    """
    Whether `value` depends on a parameter. Arguments of functions are followed to the
    operands of calls. Results of calls count as learned.
    """
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        owner = current.owner
        if isinstance(owner, Block):
            function = owner.parent_op()
            if isinstance(function, FuncOp) and current in _parameters(function):
                return True
            sources = _given(current)
        elif isinstance(owner, CallOp):
            return True  # not followed
        else:
            sources = list(owner.operands)
        pending += [v for v in sources if v not in seen]
        seen.update(sources)
    return False


def _parameters(function: FuncOp) -> list[SSAValue]:
    roles = argument_roles(function)
    return [a for a, r in zip(function.args, roles, strict=True) if r == "parameter"]


def _given(argument: SSAValue) -> list[SSAValue]:
    """
    Returns the operands that the calls of a function pass for its argument `argument`.
    """
    assert isinstance(argument, BlockArgument)
    function = argument.owner.parent_op()
    if not isinstance(function, FuncOp):
        return []
    return [call.operands[argument.index] for call in calls_of(function)]


def only_source(value: SSAValue) -> SSAValue | None:
    """
    Returns the value that all calls pass for `value`, an argument of a function.
    Returns None if calls pass different values. Returns `value` itself if `value` is
    not an argument or if its function has no calls.
    """
    while isinstance(value, BlockArgument) and (given := set(_given(value))):
        if len(given) > 1:
            return None
        (value,) = given
    return value


HIDDEN = -1e4
"""The largest number that hides a key when it takes the place of a score."""


class KnownMasks:
    """
    Computes masks and caches the results, because layers often have the same masks.
    """

    def __init__(self) -> None:
        self._arrays = KnownArrays()
        self._causal: dict[Hashable, bool] = {}
        self._showing: dict[Hashable, bool] = {}
        self._seeing: dict[Hashable, bool] = {}

    def is_causal(self, mask: Mask, size: int) -> bool:
        """
        Whether `mask` provably hides exactly the keys after each query's position.
        `size` is the number of queries and of keys.
        """
        shape = known_shape(value_of(mask))
        if isinstance(mask, Scaled) or shape is None or shape[-2:] != (size, size):
            return False
        key = _content(mask)
        if key not in self._causal:
            self._causal[key] = self._every_block(
                mask, lambda first, rows: _is_triangle(rows, first, size)
            )
        return self._causal[key]

    def shows_a_key(self, mask: Mask) -> bool:
        """Whether `mask` provably lets each query see at least one key."""
        key = _content(mask)
        if key not in self._showing:
            self._showing[key] = self._every_block(
                mask, lambda _, rows: bool((once(rows) > HIDDEN).any(-1).all())
            )
        return self._showing[key]

    def lets_all_see(self, seen: SSAValue) -> bool:
        """
        Whether the Boolean mask `seen`, which is true where a query sees a key,
        provably lets each query see at least one key.
        """
        source = only_source(seen)
        if source not in self._seeing:
            self._seeing[source] = self._every_block(
                seen, lambda _, rows: bool(once(rows).any(-1).all())
            )
        return self._seeing[source]

    def _every_block(
        self, mask: Mask, holds: Callable[[int, npt.NDArray[Any]], bool]
    ) -> bool:
        """
        Whether the array of `mask` can be computed and `holds` is true for each block
        of its rows. `holds` takes the index of the block's first row, and the numbers
        that the mask adds to the scores of these rows.
        """
        source = only_source(value_of(mask))
        return source is not None and self._arrays.every_block(
            source, lambda first, rows: holds(first, _added(mask, rows))
        )


def value_of(mask: Mask) -> SSAValue:
    """
    Returns the value on which a mask is based: the condition of a `Fill`, the value
    that a `Scaled` multiplies, or the mask itself.
    """
    match mask:
        case Fill():
            return mask.condition
        case Scaled():
            return mask.value
        case _:
            return mask


def _content(mask: Mask) -> Hashable:
    """Returns a key that is equal for masks that add the same numbers to scores."""
    source = only_source(value_of(mask))
    match mask:
        case Fill():
            lowest = _lowest(mask)
            return source, mask.hidden, element(mask.lowest), lowest.tobytes()
        case Scaled():
            return source, mask.factor
        case _:
            return source


def _lowest(mask: Fill) -> npt.NDArray[Any]:
    lowest = array_of(mask.lowest)
    assert lowest is not None
    return lowest.reshape(())


def _added(mask: Mask, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the numbers that `mask` adds to scores, from the rows of its value."""
    match mask:
        case Fill():
            lowest = _lowest(mask)
            hidden = once(rows) == mask.hidden
            added = np.where(hidden, lowest, lowest.dtype.type(0))
        case Scaled():
            added = once(rows) * rows.dtype.type(mask.factor)
        case _:
            return rows
    return np.broadcast_to(added, rows.shape)


def _is_triangle(rows: npt.NDArray[Any], first: int, size: int) -> bool:
    """
    Whether `rows` are consecutive rows of a causal mask with `size` keys, beginning
    with row `first` of the mask. Elements up to the diagonal must be 0. Elements after
    it must be so low that their weights vanish compared with the weight on the
    diagonal.
    """
    count, parts = rows.shape[-2], once(rows)
    parts = np.broadcast_to(parts, (*parts.shape[:-2], count, size))
    lowest = float(ml_dtypes.finfo(rows.dtype).min) / 2
    last = first + count
    before, after = parts[..., :first], parts[..., last:]
    at_diagonal = parts[..., first:last].astype(np.float64)
    right = np.where(np.tri(count), at_diagonal == 0, at_diagonal <= lowest)
    return bool(right.all() and (before == 0).all() and (after <= lowest).all())
