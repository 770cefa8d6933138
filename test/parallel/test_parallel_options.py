"""Modules in other types of floats, by schedules, and after a restart."""

from __future__ import annotations

import re
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from support.parallel_options import (
    KERNELS,
    float8_run,
    narrow_run,
    normed_run,
    overflowing_run,
    restarted,
    schedule_refusals,
    scheduled_run,
    split_and_merged,
    uncompilable_run,
    with_kernels,
)
from support.ranks import run_ranks
from support.thoroughness import chosen, sampled
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize
from distir.pipelining.csv_format import write_csv
from distir.pipelining.registry import build_schedule

EIGHT_BITS: list[dict[str, int]] = [dict(t=2), dict(d=2, t=2)]


def test_computing_in_bf16() -> None:
    """
    bf16 rounds to 2^-8. What several layers add to that is relative to a loss of log 32,
    which sums of 64 words average: a quarter of a rounding is left.
    """
    for rank in run_ranks(2, narrow_run, dict(d=2, zero=3, dtype="bf16")):
        assert rank["found"] == pytest.approx(rank["expected"], rel=2**-10)
        assert rank["found"] != pytest.approx(rank["expected"], rel=1e-7)
        assert rank["dtypes"] == {"torch.float32"}
        assert rank["output"] == "torch.bfloat16"


@pytest.mark.parametrize(
    "options",
    [
        dict(shard="transformer.h.*.mlp.c_fc.weight:1=d", whole="transformer.wpe.*"),
        pytest.param(
            dict(p=2, k=2, schedule="interleaved-1f1b", chunks=2, overlap="pp"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_options_of_distribute(options: dict[str, Any]) -> None:
    """Options that are declared for `distir distribute` alone are options of modules, too."""
    for rank in run_ranks(2, narrow_run, dict(d=1 if "p" in options else 2) | options):
        assert rank["found"] == pytest.approx(rank["expected"], abs=1e-5)


def test_a_schedule_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schedule.csv"
    file.write_text(write_csv(build_schedule("gpipe", 2, 2, None)))
    for rank in run_ranks(2, narrow_run, dict(p=2, k=2, schedule_file=file)):
        assert rank["found"] == pytest.approx(rank["expected"], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(zeroo=1), "there is no option zeroo; did you mean 'zero'?"),
        (dict(offload_states=True), "there is no option offload_states"),
        (dict(d=0), "argument -d: '0' is not a positive whole number"),
    ],
)
def test_options_that_modules_do_not_have(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DistIRError, match=re.escape(f"distir.parallelize: {message}")):
        parallelize(nn.Linear(2, 2), (torch.ones(2, 2),), loss="mse", **options)


@pytest.mark.slow
def test_compiled_programs() -> None:
    """`torch.compile` makes the kernels; what is trained stays the same."""
    for options in (dict(d=2), dict(d=2, zero=3, dtype="bf16")):
        plain = run_ranks(2, narrow_run, options)
        made = run_ranks(2, narrow_run, dict(options, compiled=True))
        for found, expected in zip(made, plain, strict=True):
            assert found["found"] == pytest.approx(expected["found"], rel=2**-10)
            assert found["dtypes"] == {"torch.float32"}


def test_a_compiler_that_is_not_there() -> None:
    (told,) = run_ranks(1, uncompilable_run)
    assert told.startswith("parallelize, compiled=True: ") and "C++ compiler" in told


@pytest.mark.parametrize(
    ("scaling", "plan"),
    chosen(product(("tensor", "row"), EIGHT_BITS), [("tensor", EIGHT_BITS[0])]),
    ids=str,
)
def test_products_in_8_bits(scaling: str, plan: dict[str, int]) -> None:
    """
    Ranks round as one does, but for the order of sums. Three bits of a fraction round by
    2^-4 at most, a scalar product of 32 by less.
    """
    (alone,) = run_ranks(1, float8_run, dict(float8=scaling))
    count = prod(plan.values())
    for rank in run_ranks(count, float8_run, dict(float8=scaling, **plan)):
        assert rank["found"] == pytest.approx(alone["found"], rel=2e-5)
        assert rank["found"] == pytest.approx(rank["expected"], rel=2**-8)
        assert rank["found"] != pytest.approx(rank["expected"], rel=1e-6)
        assert rank["dtypes"] == {"torch.float32"}
        assert 2**-10 < rank["output"] < 2**-4


@pytest.mark.parametrize(
    "options",
    [dict(d=2), pytest.param(dict(p=2, d=2, k=2), marks=pytest.mark.slow)],
    ids=str,
)
def test_a_step_that_overflows_in_f16_is_computed_again(
    options: dict[str, Any],
) -> None:
    scales: dict[str, int] = {}
    for rank in run_ranks(2 * options.get("p", 1), overflowing_run, options):
        for found, expected in zip(rank["found"], rank["expected"], strict=True):
            assert found == pytest.approx(expected, rel=1e-2)
        scales |= rank["scale"]
    assert scales["distir.optimizer.loss_scale"] < 0
    assert scales["distir.optimizer.loss_scale_steps"] == 3


@pytest.mark.parametrize(
    "options", sampled([dict(d=2, t=2), dict(d=2, zero=2)], 2), ids=str
)
def test_merged_parameters_keep_their_names(options: dict[str, Any]) -> None:
    count = options["d"] * options.get("t", 1)
    given = {"schedule": split_and_merged, **options}
    for rank in run_ranks(count, scheduled_run, given):
        for found, expected in zip(rank["found"], rank["expected"], strict=True):
            assert found == pytest.approx(expected, rel=1e-5)
        assert set(rank["names"]) == set(rank["all names"])
        assert rank["parameters"] < 1e-5
        assert rank["output"] < 1e-5
        if options.get("t"):
            assert rank["shapes"]["block.query.weight"] == (4, 8)
            assert rank["shapes"]["block.output.weight"] == (4, 4)


def test_what_cannot_be_asked_for_is_said(tmp_path: Path) -> None:
    (told,) = run_ranks(1, schedule_refusals, tmp_path)
    name, nowhere, wrong, module, dtype, kind, float8, groups = told
    assert "there is no float8 'columns'; choose one of tensor, row" in float8
    assert "in 2 groups, so that they are no views of it" in groups
    assert "there is no schedule '1f1bb'; choose one of" in name
    assert "nowhere.py: No such file" in nowhere
    assert "wrong.py, line 2" in wrong
    assert "'nowhere'" in module and "parallel_options.py, line" in module
    assert "there is no dtype 'f8'; choose one of bf16, f16, f32" in dtype
    assert "torch.int64" in kind


def test_dropout_goes_on_where_a_checkpoint_was(tmp_path: Path) -> None:
    for rank in run_ranks(2, restarted, dict(d=2), tmp_path / "checkpoint"):
        assert rank["read"] == pytest.approx(rank["went on"], rel=1e-6)
        assert rank["without counter"] != pytest.approx(rank["went on"], rel=1e-3)
        assert rank["counters read"] == [4.0]


@pytest.mark.parametrize(
    "options",
    [pytest.param(dict(d=2), marks=pytest.mark.slow), dict(d=2, k=2)],
    ids=str,
)
def test_batch_normalisation_by_devices(options: dict[str, Any]) -> None:
    for rank in run_ranks(2, normed_run, options):
        assert rank["found"] == pytest.approx(rank["expected"], rel=1e-4)
        assert rank["found"][0] != pytest.approx(rank["together"], rel=1e-3)
        assert rank["state"] < 1e-5


def test_kernels_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "gates.py"
    path.write_text(KERNELS)
    given = {"schedule": with_kernels, "kernels": [path], "d": 2}
    for rank in run_ranks(2, scheduled_run, given):
        for found, expected in zip(rank["found"], rank["expected"], strict=True):
            assert found == pytest.approx(expected, rel=1e-5)
        assert rank["parameters"] < 1e-5
    # Another file of the same name makes another package.
    path.write_text(KERNELS.replace("relu(key)", "relu(3 * key)"))
    for rank in run_ranks(2, scheduled_run, given):
        assert rank["found"][0] != pytest.approx(rank["expected"][0], rel=1e-3)
