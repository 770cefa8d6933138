"""Functions of JAX next to their imported programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from distir.interpreters.reference import run_program
from distir.jax import import_function


def same_as_jit(
    function: Callable[..., Any], *args: Any, tolerance: float = 1e-5
) -> None:
    """Checks that the imported function gives what jit gives."""
    traced = import_function(function, args)
    given = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(args)]
    given += traced.program.weights.values()
    found = run_program(traced.program.module, given)
    wanted = jax.tree_util.tree_leaves(jax.jit(function)(*args))
    for want, got in zip(wanted, found, strict=True):
        want = np.asarray(want)
        assert want.shape == np.shape(got) and want.dtype == got.dtype
        np.testing.assert_allclose(
            np.asarray(got, np.float64),
            np.asarray(want, np.float64),
            rtol=tolerance,
            atol=tolerance,
        )
