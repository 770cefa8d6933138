"""
Finds shardings for JAX without the devices: the mesh axes over which each dimension of
a function's arguments is split.

`search` and `distribute` take a function of JAX and its arguments, which are values or
`jax.ShapeDtypeStruct`s. Both functions return a `JaxPlan`, with the simulated time and
memory, and shardings for `jax.jit`. JAX and XLA then partition the function.
"""

from distir.jax.functions import distribute, import_function, search
from distir.jax.plan import JaxPlan, Remat
from distir.jax.remat import search_remat

__all__ = [
    "JaxPlan",
    "Remat",
    "distribute",
    "import_function",
    "search",
    "search_remat",
]
