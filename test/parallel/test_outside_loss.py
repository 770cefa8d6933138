"""A training script computes its losses from the outputs of parallel modules."""

from __future__ import annotations

from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.parallel_outside import (
    WIDTH,
    data,
    dropped,
    given_twice,
    in_16_bits,
    interrupted,
    last_batch,
    layers,
    overflow,
    refused,
    statistics,
    trained,
)
from support.ranks import run_ranks
from support.thoroughness import chosen, sampled

import distir
from distir.parallel.training.micro_batch_losses import can_divide_first, divide_first

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(d=2, t=2, zero=1),
]
PIPELINES: list[dict[str, Any]] = [dict(p=2, k=2), dict(p=2, d=2, k=2, zero=3)]


def ranks_of(options: dict[str, Any]) -> int:
    """The number of processes of a plan."""
    return prod(options.get(axis, 1) for axis in "dtp")


def assert_same(found: dict[str, Any]) -> None:
    for loss, expected in found["losses"]:
        assert loss == pytest.approx(expected, rel=1e-9)
    assert found["apart"] < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("options", [*PLANS, PIPELINES[0]], ids=str)
def test_compiled_programs(options: dict[str, Any]) -> None:
    for rank in run_ranks(ranks_of(options), trained, dict(options, compiled=True)):
        assert_same(rank)


@pytest.mark.parametrize("auto", sampled([False, True], 2))
def test_plans_of_searches(auto: bool, tmp_path: Path) -> None:
    """A plan of a program with its loss and its optimizer's states is one for outputs."""
    options: Any = dict(auto=True, time_limit=20) if auto else {}
    model = layers(0, WIDTH, 16, WIDTH)
    cluster = dict(cluster="dgx-a100", world_size=2)
    plan = distir.search(model, (data(0),), loss="mse", **cluster, **options)
    plan.save(tmp_path / "plan.json")
    for rank in run_ranks(2, trained, dict(plan=tmp_path / "plan.json")):
        assert_same(rank)


KINDS = [(dtype, has) for dtype in ("f16", "bf16") for has in (False, True)]


@pytest.mark.parametrize(
    "options, kind",
    chosen(
        [(plan, kind) for plan in (*PLANS, *PIPELINES) for kind in KINDS],
        [(PLANS[1], KINDS[0])],
    ),
    ids=str,
)
def test_losses_in_16_bits(options: dict[str, Any], kind: tuple[str, bool]) -> None:
    """All ranks leave out the steps that overflow, and the others are near PyTorch's."""
    ranks = run_ranks(ranks_of(options), in_16_bits, options, *kind)
    for rank in ranks:
        left_out = [was_left_out for _, was_left_out in rank["found"]]
        assert left_out == [each for _, each in ranks[0]["found"]]
        assert any(left_out) == (kind[0] == "f16") and not left_out[-1]
        assert rank["moved"] > 0.05
        assert rank["from f32"] < 2 * max(rank["autocast from f32"], 1e-3)


def test_an_overflow_is_one_on_all_ranks() -> None:
    inf = float("inf")
    first, second = run_ranks(2, overflow, {})
    assert first == [[inf, inf, 3.0], [1.0, 2.0, 3.0]]
    assert second == first


def test_calls_that_are_no_step() -> None:
    for found in run_ranks(2, interrupted, dict(d=2)):
        assert found["without"] is False
        assert found["again"] == 0
        assert found["second"] == 4
        assert "a second time" in found["twice"]
        assert "'0.weight' was changed in place" in found["changed"]
        assert "create_graph=True" in found["higher"]
        assert "create_graph=True" in found["higher inside"]
        assert "step(inputs, target=..., loss=...)" in found["loss"]


def test_what_a_loss_outside_does_not_go_with() -> None:
    (found,) = run_ranks(1, refused)
    assert "leave labels out" in found["labels"]
    assert 'check="import"' in found["check"]
    assert "leave out one or the other" in found["sharded"]
    assert "call step(inputs" in found["outputs"]
    assert "does not consist of 2 parts" in found["penalty"]
    assert "mean_of_parts" in found["scalar"]


def test_a_last_batch_and_its_gradients() -> None:
    for rank in run_ranks(2, last_batch, dict(d=2)):
        for found, expected in rank:
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_tensor_for_two_inputs() -> None:
    for apart in run_ranks(2, given_twice, dict(d=2)):
        assert max(apart) < 1e-12, apart


def test_running_statistics_and_masks() -> None:
    """The forward updates statistics; the backward draws the masks of its own forward."""
    for found in run_ranks(2, statistics, dict(d=2)):
        assert_same(found)
        assert found["mean"] < 1e-6  # the momentum of ONNX has 32 bits
        assert found["count"] == 5
    (difference,) = run_ranks(1, dropped, {})
    assert difference == 0


@pytest.mark.parametrize(
    ("kind", "parts", "expected"),
    [
        (torch.float32, 2, True),
        (torch.float32, 3, True),
        (torch.bfloat16, 4, True),
        (torch.bfloat16, 3, False),  # rounded once more, and coarsely
        (torch.float16, 2, False),  # small gradients would be lost
        (torch.float32, 1, False),
    ],
)
def test_gradients_of_outputs_are_divided(
    kind: torch.dtype, parts: int, expected: bool
) -> None:
    """Small ones are, instead of the gradients of all parameters, where that is as exact."""

    def is_split_with_batch(_: object) -> bool:
        return True

    program: Any = SimpleNamespace(
        all_arguments=[SimpleNamespace(name="x")],
        is_split_with_batch=is_split_with_batch,
    )
    x, parameter = torch.ones(4, 4), torch.ones(8, 8)
    given, gradients = {"x": x}, [torch.ones(4, 4, dtype=kind), None]
    may = can_divide_first(program, gradients, [parameter], given, parts)
    assert may is expected
    # Each part has its own rows of this input, whose gradient is not a mean.
    assert not can_divide_first(program, gradients, [parameter, x], given, parts)
    large: list[torch.Tensor | None] = [torch.ones(8, 8, dtype=kind)]
    assert not can_divide_first(program, large, [parameter], given, parts)
    divide_first(gradients, 4)
    assert gradients[0] is not None and float(gradients[0].max()) == 0.25
