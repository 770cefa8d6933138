"""What tests of pipelines share: arguments that reveal mistakes, and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.distribute import DistributePass
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    result_names,
)
from support.sequential import sequential_results

Array = npt.NDArray[Any]
TOLERANCE = 1e-4

UNEQUAL_STAGES = [
    ([1, 5, 9, 8], [13, 10, 16, 12], 7, 224, 219, 204),
    ([9, 3, 5, 3, 2], [9, 18, 5, 10, 4], 4, 149, 125, 102),
    ([6, 8, 9, 2, 6, 7], [11, 7, 18, 16, 15, 17], 2, 149, 146, 146),
    ([9, 1, 2], [13, 1, 16], 1, 42, 42, 42),
    ([6, 2, 4], [8, 8, 5], 4, 75, 66, 60),
    ([2, 2, 6, 9, 8], [4, 10, 18, 10, 4], 8, 262, 230, 210),
]
"""
Forward and backward times of stages, micro-batches, and the makespans of GPipe, of 1F1B
and the lower bound of any schedule (closed form PP5).
"""


def arguments_of(
    module: ModuleOp, weights: Mapping[str, Array] | None = None
) -> list[Array]:
    """
    Returns random arguments, except for given weights by name. Random parameters preserve
    the size of what passes through a layer, so that gradients are as large in the first
    layer as in the last.
    """
    arrays: list[Array] = []
    function = entry_function(module)
    for name, role, array in zip(
        argument_names(function),
        argument_roles(function),
        random_arguments(module, 0, None),
        strict=True,
    ):
        if weights and name in weights:
            array = weights[name]
        elif role == "parameter":
            spread = max(float(np.std(array)), 1e-6)
            wanted = (2 / array.shape[-1]) ** 0.5 if array.ndim > 1 else 0.5
            array = (array / spread * wanted).astype(array.dtype)
        arrays.append(array)
    return arrays


def distributed(module: ModuleOp, **options: object) -> ModuleOp:
    """
    Returns the program distributed over devices of a cluster of 16, or of as many as the
    degrees need; the given one stays as it is.
    """
    module = module.clone()
    first = module.body.block.first_op
    assert first is not None
    degrees = prod(cast(int, options.get(axis, 1)) for axis in "rdectp")
    name, size = ("cpu", 16) if degrees <= 16 else ("dgx-a100", degrees)
    module.body.block.insert_op_before(load_cluster(name, size), first)
    DistributePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    module.verify()
    return module


def assert_equal_results(
    module: ModuleOp,
    expected: Sequence[Array],
    actual: Sequence[Array],
    tolerance: float = TOLERANCE,
) -> None:
    """
    Checks that every result differs by no more than that, relative to its largest number;
    and that there is a number in it that is no rounding error, except for the gradients of
    biases of keys, which cancel out.
    """
    names = result_names(entry_function(module))
    for name, a, b in zip(names, expected, actual, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, name
        largest = float(np.abs(a).max())
        if largest < 1e-6 and name.endswith("key.bias.gradient"):
            assert float(np.abs(b).max()) < 1e-6, name
            continue
        assert largest > 1e-6, f"{name} is all but zero; the test is blind"
        error = float(np.abs(a.astype(np.float64) - b).max()) / largest
        assert error < tolerance, f"{name}: relative error {error}"


def assert_same(
    module: ModuleOp,
    tolerance: float = TOLERANCE,
    weights: Mapping[str, Array] | None = None,
    **options: object,
) -> ModuleOp:
    """
    Checks that the distributed program gives the same results; returns the distributed
    program.
    """
    arguments = arguments_of(module, weights)
    result = distributed(module, **options)
    assert_equal_results(
        module,
        sequential_results(module, arguments),
        run_program(result, arguments),
        tolerance,
    )
    return result
