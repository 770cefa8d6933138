"""
Numbers for the steps of test/jax that JAX and PyTorch make alike, without either of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FOLDER = Path(__file__).parent.parent / "jax" / "data"
"""The steps as StableHLO, and samples of their results; `test/jax/export.py` writes them."""

SAMPLES = 16
"""The elements of a result that a sample holds."""


def normal_numbers(seed: int, shape: Sequence[int]) -> Array:
    """Returns numbers with a deviation of 0.1."""
    return np.random.default_rng(seed).standard_normal(shape) * 0.1


def step_arguments(kinds: Mapping[str, tuple[Sequence[int], Any]]) -> dict[str, Array]:
    """
    Returns arguments of a step, given their shapes and NumPy types by name. The state is
    that of a training which has begun: the moments of an optimizer are not zero, and its
    counter is 3. Other integers are from 0 to 15.
    """
    found: dict[str, Array] = {}
    for number, (name, (shape, dtype)) in enumerate(kinds.items()):
        if np.issubdtype(dtype, np.floating):
            array = normal_numbers(number, shape)
            if ".nu." in name or name.endswith(".var"):
                array = array**2 + 0.01
        elif name.endswith(".count"):
            array = np.full(shape, 3)
        else:
            array = np.random.default_rng(number).integers(0, 16, shape)
        found[name] = np.asarray(array, dtype)
    return found


def sample(array: Array) -> Array:
    """Returns the elements at `SAMPLES` places all over an array, in double precision."""
    flat = np.asarray(array, np.float64).reshape(-1)
    places = np.linspace(0, flat.size - 1, SAMPLES).round().astype(np.intp)
    return flat[places]
