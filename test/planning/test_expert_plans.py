"""Searches know the axis of experts."""

from __future__ import annotations

import pytest
import torch
import transformers
from support.expert_models import experts_step, imported_experts
from support.training_programs import assert_judged_as_simulated
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32

import distir
from distir.dialects.collective_ops.over_axes import RaggedAllToAllOp
from distir.frontends.models.basic import build_gpt, build_moe
from distir.frontends.models.function_builder import FunctionBuilder
from distir.hardware import load_cluster
from distir.passes.differentiate import DifferentiatePass
from distir.planning.distribution.experts import expert_degrees
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import GridPlan, Space
from distir.program import ENTRY


def test_degrees_that_a_program_allows() -> None:
    """Those that deal devices and experts out evenly; 1 where there are no experts."""
    gpt = build_gpt(1, 16, 2, 32, 4, 8)
    assert expert_degrees([gpt], 8) == (1,)
    assert expert_degrees([build_moe(2, 16, 2, 8, 32, 4, 8)], 12) == (1, 2, 4)
    assert expert_degrees([imported_experts("mixtral").module], 8) == (1, 2, 4)


def test_groups_of_channels_are_no_experts() -> None:
    """A convolution of each channel by itself, as in Mamba, and its gradients."""
    builder = FunctionBuilder(f32)
    x = builder.argument("x", (8, 16, 32), role="input")
    kernel = builder.argument("kernel", (16, 1, 4), role="parameter")
    y = builder.op("Conv", [x, kernel], (8, 16, 29), group=16)
    module = ModuleOp([builder.finish(ENTRY, [y], ["y"])])
    DifferentiatePass(loss="mse").apply(Context(), module)
    assert {"onnx.Conv", "train.conv_grad_weight"} <= {op.name for op in module.walk()}
    assert expert_degrees([module], 8) == (1,)


def test_the_grid_has_degrees_of_experts() -> None:
    """d x e x t x p are all devices; a batch of 4 is not split over 8 of them."""
    options = SearchOptions(e=(1, 4), micro_batches=(1,))
    plans = Space.of(options, (4,), False, 8).plans()
    assert {(p.d, p.e, p.t, p.p) for p in plans if p.e > 1} == {
        (1, 4, 1, 2),
        (1, 4, 2, 1),
    }
    assert all(p.devices == 8 for p in plans)
    assert "e=4" in str(next(p for p in plans if p.e > 1))


@pytest.mark.parametrize("plan", [GridPlan(4, e=4), GridPlan(4, e=4, p=2)], ids=str)
def test_plans_with_ragged_all_to_alls_are_judged_as_simulated(plan: GridPlan) -> None:
    """What searches compile without making IR: of each layer two forwards, two backwards."""
    step = experts_step("mixtral").clone()
    first = step.body.block.first_op
    assert first is not None
    step.body.block.insert_op_before(load_cluster("cpu"), first)
    assert_judged_as_simulated(step, plan)
    found = [op for op in step.walk() if isinstance(op, RaggedAllToAllOp)]
    assert (
        len(found) == 4 * plan.p
    )  # layers that are equal share a function on each stage


@pytest.mark.slow
def test_auto_parallel_deals_out_the_experts_of_mixtral() -> None:
    """
    A layer of Mixtral at half its widths on 8 A100s: experts on some of them beat every split of
    them.
    """
    config = transformers.MixtralConfig(
        vocab_size=1024,
        hidden_size=2048,
        intermediate_size=7168,
        num_hidden_layers=1,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_local_experts=8,
        use_cache=False,
    )
    with torch.device("meta"):
        module = transformers.MixtralForCausalLM(config)
        words = torch.zeros(8, 1024, dtype=torch.int64)
    step = distir.import_model(
        module,
        (words,),
        training=True,
        loss="cross_entropy",
        dtype="bf16",
        capacity_factor=1.25,
    )
    found = distir.search(
        step,
        cluster="dgx-a100",
        devices=8,
        auto=True,
        time_limit=60,
        checkpoint="none",
        overlap="off",
        profile="none",
        micro_batches=1,
        zero=0,
    )
    plan = found.result.plan
    assert isinstance(plan, GridPlan) and plan.e > 1, str(plan)
