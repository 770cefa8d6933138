"""Overlapped and bucketed communication on real processes: the same results as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cost_programs import cluster
from support.training_programs import batches, training_gpt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import InsertPoint, Rewriter

from distir.launch.packages import Spawner, Training, run_package
from distir.lowering.torch_package import write_package
from distir.passes.distribute import DistributePass

SLOW_LINKS = cluster(
    4, levels=((4, 1e9, 1e-6),), peak=1e12, bandwidth=1e11, launch=1e-5, memory=10**9
)

CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "d2": ({"d": 2}, ["all_reduce"]),
    "d2-zero2": ({"d": 2, "zero": 2}, ["reduce_scatter", "all_gather"]),
    "d2-zero3": ({"d": 2, "zero": 3}, ["reduce_scatter", "all_gather"]),
    "p2": ({"p": 2, "k": 2}, ["send"]),
    "d2-p2": ({"d": 2, "p": 2, "k": 2}, ["all_reduce", "send"]),
    "d2-t2-zero3": ({"d": 2, "t": 2, "zero": 3}, ["reduce_scatter", "all_gather"]),
    "d2-p2-zero3": (
        {"d": 2, "p": 2, "k": 2, "zero": 3},
        ["reduce_scatter", "all_gather", "send"],
    ),
}
"""Options of `distribute`, and what is then started beside the computation."""


def run(
    module: ModuleOp, folder: Path, spawner: Spawner, options: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Losses and parameters of two steps, and the program that ran."""
    module = module.clone()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(SLOW_LINKS.clone(), first)
    DistributePass(**options).apply(Context(), module)
    module.verify()
    package = write_package(module, folder)
    inputs = batches(module)
    results = run_package(package, inputs=inputs, spawner=spawner, training=Training(2))
    return results, (package / "program.py").read_text()


FAST_LINKS = cluster(
    4, levels=((4, 1e9, 1e-8),), peak=1e9, bandwidth=1e11, launch=1e-8, memory=10**9
)
"""Devices that take as long for a product as for the sum of its terms."""


@pytest.mark.parametrize(
    ("options", "started"),
    [
        pytest.param({}, "all_reduce", id="tensor", marks=pytest.mark.slow),
        pytest.param({"sequence_parallel": True}, "all_gather", id="sequence"),
    ],
)
def test_products_in_pieces(
    options: dict[str, Any], started: str, tmp_path: Path, spawner: Spawner
) -> None:
    """
    Pieces of a product are added up, or pieces of its rows gathered, while other pieces are
    computed: other kinds of communication alone give the same losses and parameters.
    """
    module = training_gpt(optimizer="sgd", learning_rate=0.5)
    runs: list[tuple[dict[str, Any], str]] = []
    for kinds in ("dp", "tp"):
        program = module.clone()
        Rewriter.insert_op(FAST_LINKS.clone(), InsertPoint.at_start(program.body.block))
        DistributePass(
            t=2, buckets=False, overlap=True, overlapped=(kinds,), **options
        ).apply(Context(), program)
        package = write_package(program, tmp_path / kinds)
        given = batches(program)
        results = run_package(
            package, inputs=given, spawner=spawner, training=Training(2)
        )
        runs.append((results, (package / "program.py").read_text()))
    (expected, plain), (found, text) = runs
    assert text.count("torch.cat(") > plain.count("torch.cat(")
    assert text.count(f"start_{started}") > plain.count(f"start_{started}")
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)


SAMPLE = ("d2-p2-zero3",)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in SAMPLE else pytest.mark.slow)
        for case in CASES
    ],
)
def test_training(case: str, tmp_path: Path, spawner: Spawner) -> None:
    options, started = {**CASES[case][0], "buckets": False}, CASES[case][1]
    module = training_gpt()
    expected, _ = run(module, tmp_path / "plain", spawner, options)
    actual, text = run(
        module, tmp_path / "overlapped", spawner, options | {"overlap": True}
    )
    for name in started:
        assert f"collectives.start_{name}(" in text
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-5, atol=1e-6)


BUCKETS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "d2": ({"d": 2}, ["all_reduce"]),
    "d2-overlap": ({"d": 2, "overlap": True}, ["start_all_reduce"]),
    "d2-zero2": ({"d": 2, "zero": 2}, ["reduce_scatter", "all_gather"]),
    "d2-zero3-overlap": (
        {"d": 2, "zero": 3, "overlap": True},
        ["start_reduce_scatter", "start_all_gather"],
    ),
    "d2-t2-zero1": ({"d": 2, "t": 2, "zero": 1}, ["all_gather"]),
    "d2-p2-zero3": ({"d": 2, "p": 2, "k": 2, "zero": 3}, ["reduce_scatter"]),
}
"""Options of `distribute`, and what then sends several tensors at once."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case == "d2-zero3-overlap" else pytest.mark.slow)
        for case in BUCKETS
    ],
)
def test_training_in_buckets(case: str, tmp_path: Path, spawner: Spawner) -> None:
    options, sent = BUCKETS[case]
    module = training_gpt()
    plain = options | {"overlap": False, "buckets": False}
    expected, _ = run(module, tmp_path / "plain", spawner, plain)
    actual, text = run(module, tmp_path / "buckets", spawner, options)
    for name in sent:
        assert f"buckets.{name}(" in text
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-5, atol=1e-6)
