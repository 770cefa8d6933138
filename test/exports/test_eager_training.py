"""Files of `distir export --to dtensor` train as PyTorch and as DistIR do."""

from __future__ import annotations

import functools
from math import prod
from pathlib import Path
from typing import Any

import pytest
from support.eager_scripts import compared, made
from support.ranks import run_ranks
from support.thoroughness import IS_THOROUGH
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.exports.plan import EagerPlan, eager_plan
from distir.exports.source import eager_source
from distir.exports.tensor_parallel import ParallelStyle
from distir.exports.weights import WeightKind
from distir.hardware import load_cluster
from distir.parallel.compilation import training_program
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.options import DistributionOptions
from distir.planning.plans.programs import replace_cluster

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama t2": ("llama", dict(t=2)),
    "llama d2 zero 3": ("llama", dict(d=2, zero=3)),
    "llama d2 t2 zero 3": ("llama", dict(d=2, t=2, zero=3, checkpoint="full")),
    "llama d2 t2": ("llama", dict(d=2, t=2, sequence_parallel=True)),
    "bert d2 t2 zero 1": ("bert", dict(d=2, t=2, zero=1)),
    "vit d2 t2": ("vit", dict(d=2, t=2)),
    "t5 d2 t2": ("t5", dict(d=2, t=2)),
    "gpt2 d2 t2": ("gpt2", dict(d=2, t=2)),
    "llama p2": ("llama", dict(p=2, k=2)),
    "llama p2 d2": ("llama", dict(p=2, d=2, k=2, zero=1, checkpoint="full")),
    "llama p2 t2": ("llama", dict(p=2, t=2, k=4, schedule="gpipe")),
}

QUICK = ("llama d2 t2 zero 3", "llama p2 d2")
"""Plans that have the parts of the others."""

WITH_PARALLELIZE = tuple(PLANS) if IS_THOROUGH else ()
"""
Plans that `parallelize` is compared on as well; in `make test` its own tests compare it with
PyTorch.
"""


@functools.cache
def step(name: str) -> ModuleOp:
    """Returns the training step of a family, which must stay as it is."""
    family = made(name)
    found, _ = training_program(family.module, (), family.inputs, family.loss, "adamw")
    return found.module


def plan_of(name: str, options: dict[str, Any]) -> EagerPlan:
    """Returns the plan of a family's training step."""
    module = step(name).clone()
    replace_cluster(module, load_cluster("cpu"))
    distribute(module, DistributionOptions(cluster="cpu", **options))
    return eager_plan(module, "it")


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in PLANS
    ],
)
def test_training(plan: str, tmp_path: Path) -> None:
    name, options = PLANS[plan]
    path = tmp_path / "plan.py"
    path.write_text(eager_source(plan_of(name, options), "it", path.stem))
    count = prod(options.get(axis, 1) for axis in "dtp")
    is_own = plan in WITH_PARALLELIZE
    ranks = run_ranks(count, compared, name, path, 3, options, is_own)
    for found, plain, own, _ in ranks:
        if is_own:
            assert own == pytest.approx(plain, rel=1e-4)
        if any(found):
            assert found == pytest.approx(plain, rel=1e-4)
    found, plain, _, held = ranks[-1]
    assert any(found) and plain[-1] < plain[0]
    if options.get("zero") or options.get("p") or name == "llama":
        whole = sum(p.numel() for p in made(name).module.parameters())
        assert held < 0.8 * whole


def test_what_gpt2_cannot_say() -> None:
    plan = plan_of("gpt2", dict(d=2, t=2))
    # All but the words, which the head and the embedding share.
    assert plan.parallelism.styles.keys() <= {
        *("transformer.wte", "transformer.wpe", "lm_head")
    }
    told = "\n".join(plan.remarks)
    assert "transformer.h.*.attn.c_attn stays whole" in told and "Conv1D" in told
    assert set(plan.tied[0]) == {"transformer.wte", "lm_head"}


def test_a_parameter_of_two_stages_is_refused() -> None:
    with pytest.raises(
        DistIRError, match="share a parameter, but are in stages 1 and 0"
    ):
        plan_of("gpt2", dict(p=2, k=2))


def test_stages_on_meshes_of_different_shapes_are_refused() -> None:
    with pytest.raises(DistIRError, match="stages on meshes of different shapes"):
        plan_of("llama", dict(p=2, k=2, stage_meshes=("d=2", "t=2")))


def test_what_is_split_from_columns_to_rows() -> None:
    plan = plan_of("llama", dict(d=2, t=2, zero=1, checkpoint="full"))
    styles = plan.parallelism.styles
    layer = "model.layers.1."
    columns = ["self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.up_proj"]
    for name in columns:
        assert styles[layer + name] == ParallelStyle(WeightKind.LINEAR, True, True)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        assert styles[layer + name] == ParallelStyle(WeightKind.LINEAR, False, True)
    assert plan.sharding == 2
    assert plan.recomputed == plan.blocks == ("model.layers.0", "model.layers.1")
    assert any("ZeRO 1 and 2" in remark for remark in plan.remarks)
    text = eager_source(plan, "it", "plan")
    assert "model.set_submodule(name, checkpoint_wrapper(layer))" in text
    kept = eager_source(plan_of("llama", dict(d=2, t=2, zero=1)), "it", "plan")
    assert "checkpoint_wrapper" not in kept


def test_batch_normalisation_is_named() -> None:
    (remark,) = plan_of("resnet", dict(d=2)).remarks
    assert "each device's own samples" in remark and "convert_sync_batchnorm" in remark
