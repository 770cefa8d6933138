"""Steps of Equinox and Flax nnx, of a Mamba layer and of a U-Net give what jit gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder
pytest.importorskip("flax")

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx
from support.jax_models import filled, normal

from distir.interpreters.reference import run_program
from distir.jax import import_function


def sgd_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the step of a loss of parameters and batch."""

    def step(parameters: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(parameters, batch)
        return jax.tree_util.tree_map(
            lambda p, g: p - 0.1 * g, parameters, grads
        ), value

    return step


def check_step(loss: Callable[..., Any], parameters: Any, batch: Any) -> None:
    step = sgd_step(loss)
    traced = import_function(step, (parameters, batch))
    given = [np.asarray(x) for x in jax.tree_util.tree_leaves((parameters, batch))]
    given += traced.program.weights.values()
    found = run_program(traced.program.module, given)
    wanted = jax.tree_util.tree_leaves(jax.jit(step)(parameters, batch))
    for name, want, got in zip(traced.results.names, wanted, found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=name)
    assert len(traced.updated) == len(jax.tree_util.tree_leaves(parameters))


def test_equinox() -> None:
    equinox = pytest.importorskip("equinox")
    model = equinox.nn.MLP(16, 16, 64, 2, key=jax.random.key(0))
    parameters, static = equinox.partition(model, equinox.is_array)

    def loss(parameters: Any, batch: Any) -> Any:
        x, y = batch
        return jnp.mean((jax.vmap(equinox.combine(parameters, static))(x) - y) ** 2)

    check_step(loss, parameters, (normal(1, 8, 16), normal(2, 8, 16)))


class Model(nnx.Module):
    def __init__(self, rngs: Any):
        self.first = nnx.Linear(16, 64, rngs=rngs)
        self.norm = nnx.LayerNorm(64, rngs=rngs)
        self.second = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(nnx.relu(self.norm(self.first(x))))


def test_flax_nnx() -> None:
    graph, state = nnx.split(Model(nnx.Rngs(0)))

    def loss(state: Any, batch: Any) -> Any:
        x, y = batch
        return jnp.mean((nnx.merge(graph, state)(x) - y) ** 2)

    check_step(loss, state, (normal(1, 8, 16), normal(2, 8, 16)))


def test_mamba() -> None:
    """A selective scan, computed by `jax.lax.associative_scan`."""

    def joined(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def loss(p: Any, batch: Any) -> Any:
        x, y = batch
        u = x @ p["in"]
        dt = jax.nn.softplus(u @ p["dt"])[..., None]
        decay = jnp.exp(dt * -jnp.exp(p["A"]))
        added = dt * (u @ p["B"])[:, :, None, :] * u[..., None]
        _, state = jax.lax.associative_scan(joined, (decay, added), axis=1)
        out = (state * (u @ p["C"])[:, :, None, :]).sum(-1) + u
        return jnp.mean(((out * jax.nn.silu(x @ p["gate"])) @ p["out"] - y) ** 2)

    shapes = {"in": (16, 32), "dt": (32, 32), "B": (32, 4), "C": (32, 4), "A": (32, 4)}
    shapes |= {"gate": (16, 32), "out": (32, 16)}
    p = {name: normal(i, *shape) for i, (name, shape) in enumerate(shapes.items())}
    check_step(loss, p, (normal(8, 4, 16, 16), normal(9, 4, 16, 16)))


class UNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any, times: Any) -> Any:
        waves = times[:, None] * jnp.arange(4)
        time = jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1)
        time = nn.Dense(16)(nn.silu(nn.Dense(16)(time)))
        high = nn.silu(nn.GroupNorm(4)(nn.Conv(16, (3, 3))(x))) + time[:, None, None]
        low = nn.silu(nn.Conv(32, (3, 3), (2, 2))(high))
        tokens = low.reshape(low.shape[0], -1, 32)
        low = nn.MultiHeadDotProductAttention(4)(tokens).reshape(low.shape) + low
        larger = jax.image.resize(low, (low.shape[0], 8, 8, 32), "nearest")
        up = nn.ConvTranspose(16, (2, 2), (2, 2))(low) + larger[..., :16]
        return nn.Conv(3, (3, 3))(jnp.concatenate([up, high], -1))


def test_unet() -> None:
    model, x, times = UNet(), normal(1, 4, 8, 8, 3), normal(2, 4)
    shapes = jax.eval_shape(model.init, jax.random.key(0), x, times)

    def loss(p: Any, batch: Any) -> Any:
        x, times, noise = batch
        return jnp.mean((model.apply(p, x, times) - noise) ** 2)

    check_step(loss, filled(shapes), (x, times, normal(3, 4, 8, 8, 3)))
