"""
Shardings for JAX: which dimension of each argument of a function is to be split over
which axis of a mesh, found without the devices.

`search` and `distribute` take a function of JAX and its arguments, values or
`jax.ShapeDtypeStruct`s, and return a `JaxPlan`: its simulated time and memory, and
shardings for `jax.jit`. JAX and XLA then partition the function.
"""

from distir.jax.functions import distribute, import_function, search
from distir.jax.plan import JaxPlan

__all__ = ["JaxPlan", "distribute", "import_function", "search"]
