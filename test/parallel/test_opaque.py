"""Modules that are not traced train as PyTorch does on one process."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from support.parallel_opaque import noise_run, opaque_run, refused_run
from support.ranks import run_ranks
from support.thoroughness import chosen, sampled

PLANS: list[tuple[str, dict[str, Any]]] = [
    ("opaque", dict(d=2)),
    ("sent", dict(e=2)),
    ("opaque", dict(d=2, zero=3)),
    ("opaque", dict(p=2, k=2)),
    ("opaque", dict(t=2)),
    ("schedule", dict(d=2)),
    ("sent", dict(d=2)),
    ("sent", dict(e=2, d=2)),
    ("sent", dict(e=2, zero=3)),
    ("split", dict(t=2)),
    ("split", dict(t=2, d=2)),
]
QUICK = (
    ("opaque", dict(d=2, zero=3)),
    ("schedule", dict(d=2)),
    ("sent", dict(e=2, zero=3)),
)
"""The plans of `make test`. In 3, ZeRO does what it does in 0, and gathers parameters."""


def _size(options: dict[str, Any]) -> int:
    return prod(options.get(axis, 1) for axis in "dtep")


@pytest.mark.parametrize(("kind", "options"), chosen(PLANS, QUICK), ids=str)
def test_training_is_that_of_pytorch(kind: str, options: dict[str, Any]) -> None:
    own_loss = kind == "schedule"
    for apart, output, names in run_ranks(
        _size(options), opaque_run, kind, options, own_loss
    ):
        assert apart < 1e-9 and output < 1e-9
        assert options.get("p") or "blocks.1.up" in names


@pytest.mark.parametrize(
    ("kind", "options"),
    sampled([("sent", dict(e=2)), ("opaque", dict(d=2))], 2),
    ids=str,
)
def test_the_loss_may_be_outside(kind: str, options: dict[str, Any]) -> None:
    for apart, output, _ in run_ranks(2, opaque_run, kind, options, False, True):
        assert apart < 1e-9 and output < 1e-9


def test_a_function_that_communicates_wrongly_is_found() -> None:
    for said in run_ranks(2, refused_run, "detached", dict(e=2)):
        assert "opaque module 'blocks.0' (_Detached): on 2 processes" in said
        assert "the gradient of" in said and "take part in autograd" in said


@pytest.mark.parametrize("options", sampled([dict(t=2), dict(d=2)], 2), ids=str)
def test_random_numbers_of_a_backward_are_those_of_its_forward(
    options: dict[str, int],
) -> None:
    """The loss is the number, 2, times its gradient, if masks are the same."""
    first, second = run_ranks(2, noise_run, options)
    assert first == second
    *steps, (evaluated, _) = first
    for loss, gradient in steps:
        assert loss == pytest.approx(2 * gradient, rel=1e-6)
        assert loss != pytest.approx(evaluated, rel=1e-3)
    assert steps[0] != steps[1]  # another step draws other numbers
    assert evaluated == pytest.approx(2 * 32.5)


def test_an_axis_that_does_not_fit_is_named() -> None:
    for said in run_ranks(3, refused_run, "sent", dict(e=3)):
        assert "splits a dimension of 8 elements over axis 'e'" in said or (
            "cannot be split evenly" in said
        )
