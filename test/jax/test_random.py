"""Random numbers, branches and bits in functions of JAX: the numbers are those of jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder

import jax
import jax.numpy as jnp
from jax import lax
from support.jax_functions import same_as_jit

import distir
from distir.jax import distribute

KEY = jax.random.PRNGKey(3)
X = jnp.arange(32.0).reshape(8, 4) / 7 - 2

DRAWS: dict[str, Callable[[Any], Any]] = {
    "bits": lambda key: jax.random.bits(key, (3, 5)),
    "uniform": lambda key: jax.random.uniform(key, (7,), minval=-1),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.9, (8, 4)),
    "normal": lambda key: jax.random.normal(key, (16, 8)),
    "split": lambda key: [jax.random.uniform(k, (3,)) for k in jax.random.split(key)],
    "fold_in": lambda key: jax.random.uniform(jax.random.fold_in(key, 7), (3,)),
    "randint": lambda key: jax.random.randint(key, (9,), 0, 100),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name: str) -> None:
    same_as_jit(DRAWS[name], KEY)


def test_a_key_made_inside() -> None:
    same_as_jit(lambda x: x * jax.random.bernoulli(jax.random.key(5), 0.5, (8, 4)), X)


@pytest.mark.parametrize("first", [-1.0, 1.0])
def test_cond(first: float) -> None:
    def function(x: Any) -> Any:
        return lax.cond(
            x[0, 0] > 0, lambda y: (y * 2, y[0]), lambda y: (y + 1, y[1]), x
        )

    same_as_jit(function, X.at[0, 0].set(first))


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 9])
def test_switch(index: int) -> None:
    branches = [lambda y: y * 2, lambda y: y + 1, jnp.sin]
    same_as_jit(lambda i, x: lax.switch(i, branches, x), jnp.int32(index), X)


def test_shifts() -> None:
    x = jnp.asarray([1, 2**31, 77, 2**32 - 1], jnp.uint32)
    by = jnp.asarray([0, 31, 32, 40], jnp.uint32)
    same_as_jit(lax.shift_left, x, by)
    same_as_jit(lax.shift_right_logical, x, by)


def test_erfc() -> None:
    same_as_jit(lambda x: jax.nn.gelu(x, approximate=False), X)
    same_as_jit(lax.erfc, X)


def test_a_step_with_dropout() -> None:
    def step(w: Any, x: Any, key: Any) -> Any:
        def loss(w: Any) -> Any:
            kept = jax.random.bernoulli(key, 0.75, (8, 16))
            return jnp.mean(jnp.where(kept, x @ w / 0.75, 0) ** 2)

        value, grads = jax.value_and_grad(loss)(w)
        return w - 0.1 * grads, value

    w = jnp.ones((4, 16)) / 3
    plan = distribute(
        step,
        (w, X, KEY),
        cluster="cpu",
        d=2,
        t=2,
        donate_argnums=0,
        batch_argnums=1,
    )
    same_as_jit(step, w, X, KEY)
    assert distir.check(plan.traced.program, plan.program, tolerance=1e-5)
