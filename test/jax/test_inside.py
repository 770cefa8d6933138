"""Values inside of a function: their shardings by name, and what is saved of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from distir.errors import DistIRError
from distir.jax import distribute, search_remat

WIDTH = 32


def layer(own: Any, x: Any) -> Any:
    with jax.named_scope("mlp"):
        h = checkpoint_name(jnp.tanh(x @ own["up"]), "hidden")
        return checkpoint_name(x + h @ own["down"], "out")


def step_of(policy: Any) -> Any:
    def loss(parameters: Any, batch: Any) -> Any:
        own = jax.checkpoint(layer, policy=policy)
        x, _ = jax.lax.scan(lambda x, each: (own(each, x), None), batch, parameters)
        return jnp.mean(x**2)

    def step(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    return step


def arguments(layers: int = 2) -> tuple[Any, Any]:
    random = partial(jax.random.normal, jax.random.key(0))
    state = {
        "up": random((layers, WIDTH, 4 * WIDTH)) * 0.1,
        "down": random((layers, 4 * WIDTH, WIDTH)) * 0.1,
    }
    return state, random((8, WIDTH))


def test_named_values_are_constrained() -> None:
    args = arguments()
    names = jax.checkpoint_policies.save_only_these_names("hidden")
    step = step_of(names)
    plan = distribute(step, args, cluster="cpu", devices=8, d=4, t=2)
    assert plan.constraints["hidden"] == PartitionSpec("d", "t")
    assert plan.constraints["out"] == PartitionSpec("d")
    assert plan.constraints["mlp"] == PartitionSpec("d")
    run = jax.jit(
        plan.constrained(step),
        in_shardings=plan.in_shardings,
        out_shardings=plan.out_shardings,
    )
    text = run.lower(*args).as_text()
    assert "sdy.sharding_constraint" in text and '[{"d"}, {"t"}]' in text
    placed = jax.device_put(args, plan.in_shardings)
    found, wanted = run(*placed), jax.jit(step)(*args)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    with pytest.raises(DistIRError, match="did you mean 'hidden'"):
        plan.constrain(placed[1], "hiden")


def test_what_is_saved_is_found() -> None:
    """With room for all values nothing is computed again; without, little is saved."""
    plan = search_remat(
        step_of, arguments(), cluster="cpu", devices=2, names=("hidden",), zero=(0,)
    )
    assert plan.remat is not None and plan.remat.name != "nothing"
    assert f"jax.checkpoint saves {plan.remat.name}" in str(plan)
    step = jax.jit(step_of(plan.remat.policy), in_shardings=plan.in_shardings)
    assert step.lower(*arguments()) is not None
