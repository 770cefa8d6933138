"""
The graph of strategies for one axis, which is to replace the dynamic program: on models of
transformers both make the same distributed program.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.builders import build_gpt
from distir.hardware import load_cluster
from distir.passes import sharding_plan
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.axes import AxisPlanner
from distir.planning.meshes import add_mesh
from distir.planning.programs import replace_cluster
from distir.program import entry_function, functions, updated_arguments
from distir.sharding.choice import ArgumentKey, FunctionChoice, Placement, Signatures


def gpt(layers: int, trains: bool) -> ModuleOp:
    module = build_gpt(layers, d_model=64, heads=4, vocab=128, batch=8, seq=16)
    replace_cluster(module, load_cluster("dgx2"))
    if trains:
        DifferentiatePass().apply(Context(), module)
    return module


class PlannedAxis(AxisPlanner):
    """Asked as `AxisChooser` is."""

    def solve(self, name: str, arguments: Any) -> Any:
        choice: FunctionChoice = super().solve(name, arguments)
        return [choice]


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    "options", [{"d": 2}, {"t": 4}, {"d": 2, "t": 2}], ids=["data", "tensor", "both"]
)
def test_transformers_are_distributed_as_by_the_dynamic_program(
    options: dict[str, int], trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_distributed_alike(options, trains, monkeypatch)


def test_pure_zero_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_distributed_alike({"d": 4, "zero": 3}, True, monkeypatch)


def assert_distributed_alike(
    options: dict[str, int], trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, module = gpt(4, trains), gpt(4, trains)
    DistributePass(**options).apply(Context(), expected)
    monkeypatch.setattr(sharding_plan, "AxisChooser", PlannedAxis)
    DistributePass(**options).apply(Context(), module)
    assert str(module) == str(expected)


def nodes_of_step(layers: int) -> int:
    """The choices in the graph of a training step of a GPT."""
    module = gpt(layers, trains=True)
    mesh = add_mesh(module, [("t", 2)], None)
    entry = entry_function(module)
    whole: ArgumentKey = (Placement("whole"), "activation")
    planner = AxisPlanner(
        functions(module),
        entry.sym_name.data,
        mesh,
        "t",
        {},
        split_parameters=False,
        updates=updated_arguments(entry),
        signatures=Signatures(),
    )
    planner.solve(entry.sym_name.data, [whole] * len(entry.body.block.args))
    return planner.nodes


def test_a_graph_does_not_grow_with_layers_that_repeat() -> None:
    """Those between the first and the last decide alike, with all that belongs to them."""
    assert nodes_of_step(8) == nodes_of_step(12)
