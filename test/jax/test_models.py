"""Whole training steps: imported, distributed, and run by JAX with our shardings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder
pytest.importorskip("flax")
pytest.importorskip("optax")

import jax
import numpy as np

from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.jax import distribute, import_function, search

_SPEC = importlib.util.spec_from_file_location(
    "jax_models", Path(__file__).with_name("models.py")
)
assert _SPEC is not None and _SPEC.loader is not None
models = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(models)

MODELS = ["mlp", "gpt", "gpt_scan"]


def check_close(names: Any, wanted: Any, found: Any) -> None:
    """Compares results; AdamW enlarges rounding where a gradient is almost zero."""
    for name, want, got in zip(names, wanted, found, strict=True):
        want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
        assert np.abs(want - got).max(initial=0) < 5e-5, name


@pytest.mark.parametrize("name", MODELS)
def test_program_gives_what_jit_gives(name: str) -> None:
    step = models.MODELS[name]()
    traced = import_function(*step)
    given = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(step.args)]
    given += traced.program.weights.values()
    found = run_program(traced.program.module, given)
    wanted = jax.tree_util.tree_leaves(jax.jit(step.function)(*step.args))
    check_close(traced.results.names, wanted, found)


@pytest.mark.parametrize(
    "name, degrees",
    [
        ("mlp", {"d": 2, "t": 2}),
        ("gpt", {"d": 4, "t": 2, "zero": 1}),
        ("gpt_scan", {"d": 2, "t": 2}),
        ("gpt_scan", {"d": 8, "zero": 3}),
    ],
)
def test_jax_runs_with_the_shardings(name: str, degrees: dict[str, int]) -> None:
    step = models.MODELS[name]()
    plan = distribute(*step, cluster="cpu", devices=8, **degrees)
    run = jax.jit(
        step.function,
        in_shardings=plan.in_shardings,
        out_shardings=plan.out_shardings,
    )
    placed = jax.device_put(step.args, plan.in_shardings)
    found = jax.tree_util.tree_leaves(run(*placed))
    wanted = jax.tree_util.tree_leaves(jax.jit(step.function)(*step.args))
    check_close(plan.traced.results.names, wanted, found)
    assert "split" in str(plan) and plan.time_s > 0


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
