"""Modules that are distributed train as PyTorch does on one process."""

from __future__ import annotations

import functools
from math import prod
from pathlib import Path
from typing import Any

import pytest
from support.parallel_scripts import (
    dropout_run,
    frozen_run,
    meta_buffer,
    meta_run,
    refusals,
    resumed,
    resumed_plainly,
    samples,
    saved,
    training_run,
)
from support.ranks import run_ranks
from support.thoroughness import chosen, sampled

PLANS: dict[str, dict[str, Any]] = {
    "one rank": dict(),
    "d2 t2": dict(d=2, t=2),
    "d4 zero 1": dict(d=4, zero=1),
    "d2 t2 zero 2": dict(d=2, t=2, zero=2),
    "d4 zero 3": dict(d=4, zero=3),
    "r2 d2 zero 3": dict(r=2, d=2, zero=3),
    "d2 c2 ring": dict(d=2, c=2, context="ring", context_order="cyclic"),
    "p2 d2 zero 3": dict(p=2, d=2, k=2, zero=3),
    "p2 t2 options": dict(
        p=2,
        t=2,
        k=2,
        schedule="gpipe",
        checkpoint="full",
        sequence_parallel=True,
        overlap=True,
    ),
}


QUICK = ("d2 c2 ring",)
"""
Plans that no other test of `make test` has: on one rank, and with ZeRO 1, the models without
values train as PyTorch does; a checkpoint of t2 goes on in a pipeline with ZeRO 3, and in
PyTorch; losses of scripts are computed on two axes.
"""

WITHOUT_VALUES: list[dict[str, Any]] = [dict(d=2, zero=1), dict(d=2, t=2, zero=1)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, options in PLANS.items()
    ],
)
def test_training_is_that_of_pytorch(options: dict[str, Any]) -> None:
    count = prod(options.get(axis, 1) for axis in "rdctp")
    layers = 1 if "c" in options else 2
    ranks = run_ranks(count, training_run, options, layers)
    names: set[str] = set()
    for rank in ranks:
        assert rank["found"] == [pytest.approx(e, rel=1e-4) for e in rank["expected"]]
        assert rank["parameters"] < 1e-5
        assert rank["output"] < 1e-4
        assert rank["kind"] == "CausalLMOutputWithCrossAttentions"
        names |= set(rank["names"])
    assert names == set(ranks[0]["all names"])
    if options.get("zero"):
        parts = max(rank["bytes"] for rank in ranks)
        # Tensor parallelism leaves small models whole, and pipelines have a tied head twice.
        assert parts <= 1.01 * ranks[0]["all bytes"] / options["d"]


@functools.cache
def without_values() -> dict[str, Any]:
    """The training of a model without values on one rank."""
    (alone,) = run_ranks(1, meta_run, {})
    return alone


@pytest.mark.parametrize(
    "options", chosen([(p,) for p in WITHOUT_VALUES], [(WITHOUT_VALUES[0],)]), ids=str
)
def test_modules_without_values_begin_alike_under_every_plan(
    options: dict[str, Any],
) -> None:
    """They train as PyTorch does from there: LLaMA, without values."""
    for rank in run_ranks(2 * options.get("t", 1), meta_run, options):
        for values in (rank["expected"], without_values()["found"]):
            assert rank["found"] == [pytest.approx(each, rel=1e-4) for each in values]


@pytest.mark.slow  # test_modules_without_values_begin_alike_under_every_plan has meta tensors, frontends/torch/modules the fake ones
def test_modules_of_fake_tensors_begin_as_those_on_the_meta_device() -> None:
    (fake,) = run_ranks(1, meta_run, {}, True)
    assert fake == without_values()
    (told,) = run_ranks(1, meta_buffer, {})
    assert "buffer '1.running_mean' has no value, as on the meta device" in told


@pytest.mark.slow
def test_dropout_is_that_of_one_rank() -> None:
    (alone,) = run_ranks(1, dropout_run, {})
    for rank in run_ranks(4, dropout_run, dict(d=2, t=2)):
        assert rank == [pytest.approx(values, rel=1e-4) for values in alone]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(dict(d=2), id="d2"),
        pytest.param(dict(p=2, d=2), id="p2 d2", marks=pytest.mark.slow),
    ],
)
def test_what_is_frozen_buffers_and_losses_of_ones_own(options: dict[str, Any]) -> None:
    ranks = run_ranks(2 * options.get("p", 1), frozen_run, options)
    assert set.union(*(rank["names"] for rank in ranks)) == ranks[0]["all names"]
    for rank in ranks:
        assert rank["found"] == pytest.approx(rank["expected"], rel=1e-5)
        assert rank["backbone"]
        assert rank["state"] < 1e-5
        assert rank["output"] < 1e-5


@pytest.mark.parametrize("micro_batches", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_every_sample_is_seen_once(micro_batches: int) -> None:
    options = dict(d=2, t=2, k=micro_batches)
    first, second, third, fourth = run_ranks(4, samples, options, 12)
    assert first == second and third == fourth
    assert sorted(first + third) == list(range(12))


_MOVES = [
    (2, dict(p=2, k=2), dict(d=2, zero=3)),
    (4, dict(p=2, d=2, k=2, zero=1), dict(d=2, t=2)),
    (4, dict(d=2, t=2), dict(p=2, d=2, k=2, zero=3)),
    (2, dict(p=2, k=2), dict(p=2, k=2)),
    (4, dict(p=2, t=2, k=2), dict(d=4, zero=2)),
    (2, dict(p=2, k=2), dict(t=2)),
    (2, dict(t=2), dict(p=2, k=2)),
]


@pytest.mark.parametrize(("ranks", "before", "after"), sampled(_MOVES, 7), ids=str)
def test_checkpoints_are_read_under_other_plans(
    ranks: int, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    """
    Parameters and the states of an optimizer with several groups, by `get_state_dict`
    without options.
    """
    folder = tmp_path / "checkpoint"
    expected = run_ranks(ranks, saved, before, folder)[0]
    assert expected[0] != expected[1]
    for losses in run_ranks(ranks, resumed, after, folder):
        assert losses == pytest.approx(expected, rel=1e-5)
    assert run_ranks(1, resumed_plainly, folder) == [pytest.approx(expected, rel=1e-5)]


def test_what_cannot_be_is_said() -> None:
    for told in run_ranks(2, refusals):
        world, loss, shape, fewer, shorter, dtype, mask, labels, keyword, name = told
        assert "needs 4 processes, but there are 2" in world
        assert loss == "nothing"  # a module without a loss: the script computes it
        assert "'input_ids' has shape [8, 8], but rank" in shape and "[4, 8]" in shape
        assert fewer == "nothing"  # another shape is another program
        assert "label has shape [4, 8], but rank" in shorter and "[4, 4]" in shorter
        assert "'input_ids' is torch.int32" in dtype
        assert "attention_mask = None, but is called with a tensor" in mask
        assert "labels" in labels
        assert "takes the labels as its last positional argument" in keyword
        assert "crossentropy" in name
