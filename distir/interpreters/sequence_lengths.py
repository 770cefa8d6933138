"""Recurrent layers over sequences of several lengths, which `onnx.reference` takes as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import RECURRENT

Array = npt.NDArray[Any]

_LENGTHS, _STATES = 4, (5, 6)
"""The inputs of a recurrent layer that hold the lengths, and the first states."""


def has_lengths(op: OnnxOp, inputs: Sequence[Any]) -> bool:
    """Returns whether an op is a recurrent layer that is given the lengths of sequences."""
    return (
        op.name in RECURRENT
        and len(inputs) > _LENGTHS
        and isinstance(inputs[_LENGTHS], np.ndarray)
        and len(inputs[_LENGTHS]) > 0
    )


def by_length(
    op: OnnxOp, inputs: Sequence[Any], run: Callable[[Sequence[Any]], Sequence[Array]]
) -> list[Array]:
    """
    Returns the results of a recurrent layer: those of `run` on the sequences of each
    length, cut to it. Outputs beyond the end of a sequence are 0, its last states are those
    at its end, and its reverse direction begins there.
    """
    x, lengths = inputs[0], inputs[_LENGTHS]
    batch_first = bool(op.attribute("layout"))
    batch, steps = (0, 1) if batch_first else (1, 0)
    # Outputs are [steps, directions, batch, features], or begin with the batch.
    batch_of = [0 if batch_first else 2, batch, batch]
    results: list[Array] = []
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        given = list(inputs)
        # One step has results of the right shapes where there is none.
        some = np.take(x, rows, batch)
        given[0] = np.take(some, range(max(length, 1)), steps)
        given[_LENGTHS] = lengths[rows]
        for i in _STATES[: len(inputs) - _STATES[0]]:
            if inputs[i] is not None:
                given[i] = np.take(inputs[i], rows, batch)
        found = list(run(given))
        if not length:
            starts = given[_STATES[0] :][: len(found) - 1]
            starts += [None] * (len(found) - 1 - len(starts))
            found = [np.zeros_like(part) for part in found]
            for i, start in enumerate(starts, 1):
                found[i] = found[i] if start is None else start
        missing = [(0, 0)] * found[0].ndim
        missing[steps] = (0, x.shape[steps] - found[0].shape[steps])
        found[0] = np.pad(found[0], missing)
        pairs = list(zip(found, batch_of[: len(found)], strict=True))
        results = results or [
            np.repeat(np.take(part, [0], axis), len(lengths), axis)
            for part, axis in pairs
        ]
        for whole, (part, axis) in zip(results, pairs, strict=True):
            np.moveaxis(whole, axis, 0)[rows] = np.moveaxis(part, axis, 0)
    return results
