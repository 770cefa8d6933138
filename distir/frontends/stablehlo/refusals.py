"""Advice for users on the ops of JAX that cannot be converted."""

from __future__ import annotations

DEFAULT = "compute it in another way, or leave it out of the function that is imported"

_LOOP = (
    "use lax.scan, or lax.fori_loop with bounds that are Python ints, and select with "
    "jnp.where in the rounds that are not needed"
)
_MATRICES = (
    "compute it before the step and pass the result as an argument, or write it with a "
    "fixed number of matrix products"
)
_COMPLEX = "write real and imaginary parts as two arrays of floats"

BY_NAME = {
    "stablehlo.while": _LOOP,
    "stablehlo.fft": "multiply by the matrix of the transform, or compute it before the "
    "step and pass the result as an argument",
    "stablehlo.cholesky": _MATRICES,
    "stablehlo.triangular_solve": _MATRICES,
    "stablehlo.complex": _COMPLEX,
    "stablehlo.real": _COMPLEX,
    "stablehlo.imag": _COMPLEX,
    "stablehlo.bitcast_convert": "compute it in another way; for random numbers, use "
    "keys of threefry, the default of JAX, instead of rbg",
    "sdy.manual_computation": "write it for whole arrays, without shard_map and pmap",
}
"""What a user can do instead, by the name of an op of StableHLO."""

BY_TARGET = {
    "lapack": _MATRICES,
    "cusolver": _MATRICES,
    "Eigh": _MATRICES,
    "Qr": _MATRICES,
    "callback": "leave out callbacks, such as jax.debug.print, in the function that is "
    "imported",
    "ApproxTopK": "use jax.lax.top_k",
    "SPMD": BY_NAME["sdy.manual_computation"],
}
"""What a user can do instead, by a part of the target of a custom call."""


def advice(name: str, target: str) -> str:
    """
    Returns advice for the user about the op `name`, which cannot be converted. `target`
    is the function that a custom call calls, or "" for any other op.
    """
    for part, found in BY_TARGET.items():
        if target and part in target:
            return found
    return BY_NAME.get(name, DEFAULT)
