"""Whole training steps: imported, distributed, and run by JAX with our shardings."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder
pytest.importorskip("flax")
pytest.importorskip("optax")

import jax
import numpy as np
from support import jax_models as models

from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.jax import distribute, import_function, search

DEGREES: dict[str, dict[str, int]] = {
    "d2t4": {"d": 2, "t": 4},
    "d4t2-zero1": {"d": 4, "t": 2, "zero": 1},
    "d8-zero3": {"d": 8, "zero": 3},
}


def by_name(plan_names: Any, results: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves(results)
    arrays = [np.asarray(leaf, np.float64) for leaf in leaves]
    return dict(zip(plan_names, arrays, strict=True))


def check_close(
    wanted: dict[str, Any], found: dict[str, Any], tolerance: float = 1e-5
) -> None:
    """
    Compares results. Left out are elements of a parameter whose gradient is so near 0
    that rounding decides of it: AdamW divides it by its own size in the first step.
    """
    for name, want in wanted.items():
        moment = wanted.get(name.replace("result.0.0.", "result.0.1.0.mu."))
        decided = np.ones(want.shape, bool)
        if name.startswith("result.0.0.") and moment is not None:
            decided = np.abs(moment) > SMALLEST
        difference = np.abs(want - found[name])[decided].max(initial=0)
        assert difference < tolerance, (name, difference)


SMALLEST = 1e-8
"""A tenth of a gradient, as AdamW's first moment is: the gradient is 10 times its epsilon."""


@pytest.mark.parametrize("name", models.MODELS)
def test_program_gives_what_jit_gives(name: str) -> None:
    """In double precision, where rounding decides of nothing: all elements count."""
    with jax.enable_x64(True):
        step = models.MODELS[name]().in_double()
        traced = import_function(*step)
        given = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(step.args)]
        given += traced.program.weights.values()
        found = run_program(traced.program.module, given)
        wanted = jax.jit(step.function)(*step.args)
    names = traced.results.names
    for own, want, got in zip(
        names, by_name(names, wanted).values(), found, strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9, err_msg=own)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("name", models.MODELS)
def test_jax_runs_with_the_shardings(name: str, degrees: str) -> None:
    step, options = models.MODELS[name](), DEGREES[degrees]
    if options.get("zero") == 1 and name == "mlp":
        pytest.skip("SGD without momentum has no state to split")
    plan = distribute(*step, cluster="cpu", devices=8, **options)
    run = jax.jit(
        step.function,
        in_shardings=plan.in_shardings,
        out_shardings=plan.out_shardings,
    )
    compiled = run.lower(*step.args).compile()
    found = compiled(*jax.device_put(step.args, plan.in_shardings))
    wanted = jax.jit(step.function)(*step.args)
    names = plan.traced.results.names
    check_close(by_name(names, wanted), by_name(names, found))
    assert "split" in str(plan) and plan.time_s > 0
    found = plan.collectives(compiled)
    for own, others in (
        (found.simulated, found.only_simulated),
        (found.compiled, found.only_compiled),
    ):
        assert sum(others.values()) <= len(own) and own


RATIOS = {
    ("mlp", "d2t4"): 1.00,
    ("mlp", "d8-zero3"): 1.20,
    ("gpt_scan", "d2t4"): 1.22,
    ("gpt_scan", "d4t2-zero1"): 1.14,
    ("gpt_scan", "d8-zero3"): 1.12,
    ("vit", "d2t4"): 1.61,
    ("vit", "d4t2-zero1"): 1.36,
    ("vit", "d8-zero3"): 0.75,
    ("resnet", "d2t4"): 2.03,
    ("resnet", "d4t2-zero1"): 1.99,
    ("resnet", "d8-zero3"): 1.33,
    ("moe", "d2t4"): 1.65,
    ("moe", "d4t2-zero1"): 1.11,
    ("moe", "d8-zero3"): 1.24,
}
"""
The bytes that a device sends in a step of the compiled function, for each simulated byte.
docs/jax.md gives the reasons of those that are not near 1.
"""


@pytest.mark.parametrize("name, degrees", RATIOS)
def test_collectives_of_usual_sizes(name: str, degrees: str) -> None:
    step = models.usual(name)
    plan = distribute(*step, cluster="dgx-h100", devices=8, **DEGREES[degrees])
    run = jax.jit(
        step.function,
        in_shardings=plan.in_shardings,
        out_shardings=plan.out_shardings,
    )
    with jax.set_mesh(plan.mesh):
        found = plan.collectives(run.lower(*step.args).compile())
    assert found.ratio == pytest.approx(RATIOS[name, degrees], rel=0.1), str(found)


def test_search_uses_all_devices() -> None:
    plan = search(*models.mlp(), cluster="cpu", devices=4, zero=(0,))
    assert len(plan.layout_mesh.devices) == 4
    assert jax.tree_util.tree_structure(plan.in_shardings) is not None


def test_layouts_in_runs_are_refused() -> None:
    """They are more than shardings can say, and shardings must say what is simulated."""
    step = models.mlp()
    name = "state.0.w1"
    with pytest.raises(DistIRError, match="runs"):
        distribute(*step, cluster="cpu", t=2, shard=[f"{name}:1=t:2"])
