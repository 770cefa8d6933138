"""Searches know the axis of experts."""

from __future__ import annotations

import pytest
import torch
import transformers
from support.expert_models import imported_experts

import distir
from distir.frontends.builders import build_gpt, build_moe
from distir.planning.experts import expert_degrees
from distir.planning.plan import GridPlan, SearchOptions, Space


def test_degrees_that_a_program_allows() -> None:
    """Those that deal devices and experts out evenly; 1 where there are no experts."""
    gpt = build_gpt(1, 16, 2, 32, 4, 8)
    assert expert_degrees([gpt], 8) == (1,)
    assert expert_degrees([build_moe(2, 16, 2, 8, 32, 4, 8)], 12) == (1, 2, 4)
    assert expert_degrees([imported_experts("mixtral").module], 8) == (1, 2, 4)


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
