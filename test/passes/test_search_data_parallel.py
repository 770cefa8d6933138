"""Layouts that are found compete with data parallelism in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cost_programs import cluster, parse
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_mlp
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.search_sharding import SearchShardingPass
from distir.planning.annotations import read_notes
from distir.planning.layouts.fitted import FittedSearch

PROFILE = ("auto",)


def step() -> ModuleOp:
    """
    Returns a training step on four V100s with small parameters. With the profile they are
    updated and sent many at once, which the sum that layouts minimise does not know.
    """
    module = build_mlp(layers=6, d_model=128, batch=4096)
    DifferentiatePass(loss="mse", optimizer="adamw").apply(Context(), module)
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(load_cluster("v100-roce", 4), first)
    return module


def seconds(module: ModuleOp) -> float:
    """Returns the simulated seconds of a distributed program."""
    return simulate(module, profiles=PROFILE).step_time_s


def searched(module: ModuleOp, **options: Any) -> ModuleOp:
    """Returns the program with the layouts that the pass takes."""
    found = module.clone()
    options = {"axes": ("d=4",), "profile": PROFILE} | options
    SearchShardingPass(**options).apply(Context(), found)
    found.verify()
    return found


def test_data_parallelism_is_taken_where_it_is_simulated_to_be_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = step()
    found = searched(module)
    by_hand = module.clone()
    DistributePass(d=4, buckets=False).apply(Context(), by_hand)
    (note,) = read_notes(found)
    assert note.startswith("search-sharding: data parallelism, which takes")
    assert "the layouts found take" in note
    assert seconds(found) == seconds(by_hand)

    def no_rival(search: FittedSearch, module: ModuleOp) -> None:
        """Data parallelism as where the batch does not divide."""

    monkeypatch.setattr(FittedSearch, "data_parallel", no_rival)
    assert seconds(found) < seconds(searched(module))


def test_layouts_that_are_faster_stay() -> None:
    """By the data sheets nothing runs together, and the least sum is the least time."""
    (note,) = read_notes(searched(step(), profile=()))
    assert "data parallelism" not in note


def test_results_stay() -> None:
    sequential = step()
    arguments = random_arguments(sequential, seed=0)
    expected = run_program(sequential, arguments)
    got = run_program(searched(sequential), arguments)
    for before, after in zip(expected, got, strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-6)


def test_requests_come_first() -> None:
    """A batch that must stay whole is not split, however fast that would be."""
    found = searched(step(), whole=("input",))
    (note,) = read_notes(found)
    assert "data parallelism" not in note


@pytest.mark.parametrize("axes", [("d=2",), ("d=2", "t=2")])
def test_the_batch_is_split_over_all_axes_and_micro_batches(
    axes: tuple[str, ...],
) -> None:
    """Pipelines compete too: two stages, each data parallel, with two micro-batches."""
    module = step()
    on = load_cluster("v100-roce", 8)
    old = module.body.block.first_op
    assert old is not None
    module.body.block.insert_op_before(on, old)
    old.detach()
    found = searched(module, axes=axes, p=2, k=2)
    by_hand = module.clone()
    degree = 2 ** len(axes)
    DistributePass(d=degree, p=2, k=2, buckets=False).apply(Context(), by_hand)
    assert seconds(found) <= seconds(by_hand)


def test_a_result_that_an_op_needs_whole() -> None:
    """
    The program returns what it computes of each micro-batch, though another op needs it of
    the whole batch before: the part is not cut out of the whole.
    """
    module = parse(
        """
        func.func @main(%x: tensor<4x4xf32> {dist.role = "input", dist.name = "x"},
            %w: tensor<4x2xf32> {dist.role = "parameter", dist.name = "w"})
            -> (tensor<3x2xf32>, tensor<4x2xf32>) {
          %y = onnx.MatMul(%x, %w)
            : (tensor<4x4xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
          %sizes = onnx.Constant() {value = dense<[1, 3]> : tensor<2xi64>}
            : () -> tensor<2xi64>
          %a, %b = onnx.Split(%y, %sizes) {axis = 0 : i64}
            : (tensor<4x2xf32>, tensor<2xi64>) -> (tensor<1x2xf32>, tensor<3x2xf32>)
          func.return %b, %y : tensor<3x2xf32>, tensor<4x2xf32>
        }
        """
    )
    on = cluster(2, levels=((2, 1e9, 1e-9),), peak=1e6, bandwidth=1e6)
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    found = searched(module, axes=("d=2",), k=2, profile=())
    by_hand = module.clone()
    DistributePass(d=2, k=2).apply(Context(), by_hand)
    arguments = random_arguments(module, seed=0)
    expected = run_program(module, arguments)
    for program in (found, by_hand):
        got = run_program(program, arguments)
        for before, after in zip(expected, got, strict=True):
            np.testing.assert_allclose(after, before, rtol=1e-6)
