"""Layouts that the search chose, on real processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cost_programs import cluster
from training_programs import training_gpt, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.builders import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.lowering.launch import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.passes.search_sharding import SearchShardingPass
from distir.program import argument_names, entry_function

PROGRAMS = {
    "forward": (
        lambda: build_gpt(layers=2, d_model=16, heads=4, vocab=32, batch=1, seq=8),
        ("t=4",),
    ),
    "training": (training_gpt, ("d=4",)),
    "two axes": (lambda: training_mlp(batch=16), ("d=2", "t=2")),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_searched_plans_run(case: str, spawner: Spawner, tmp_path: Path) -> None:
    """Work is dear and communication cheap, so that values are split."""
    build, axes = PROGRAMS[case]
    module: ModuleOp = build()
    arguments = random_arguments(module, seed=0)
    expected = run_program(module, arguments)
    first = module.body.block.first_op
    assert first is not None
    on = cluster(4, levels=((4, 1e9, 1e-9),), peak=1e6, bandwidth=1e6)
    module.body.block.insert_op_before(on, first)
    SearchShardingPass(axes).apply(Context(), module)
    assert any("collective" in op.name for op in module.walk())
    write_package(module, tmp_path)
    names = argument_names(entry_function(module))
    inputs = dict(zip(names, arguments, strict=True))
    results = run_package(tmp_path, inputs=inputs, timeout_s=60, spawner=spawner)
    for actual, value in zip(results.values(), expected, strict=True):
        np.testing.assert_allclose(actual, value, rtol=1e-3, atol=1e-4)
