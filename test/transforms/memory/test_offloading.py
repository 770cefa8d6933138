"""Activations in the host's memory: the same training, less memory, and what the link costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.schedules import assert_same_results, scheduled
from support.thoroughness import sampled
from support.training_programs import (
    assert_judged_as_simulated,
    distributed,
    training_gpt,
)
from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, TensorType
from xdsl.utils.exceptions import VerifyException

from distir.dialects.device import KindOp
from distir.dialects.host import HostType
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.programs import replace_cluster
from distir.program import (
    argument_names,
    entry_function,
    result_names,
    walk_functions,
)
from distir.scheduling import Schedule


def offloaded_bytes(module: ModuleOp) -> int:
    """The bytes of f32 that the entry function's calls keep in the host's memory."""
    types = [r.type for op in entry_function(module).body.block.ops for r in op.results]
    return sum(
        4 * int(np.prod(shape_of(type_)))
        for type_ in types
        if isinstance(type_, TensorType) and isinstance(type_.element_type, HostType)
    )


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"d": 2, "zero": 3},
            {"d": 2, "t": 2},
            {"p": 2, "k": 2, "t": 2},
            {"p": 2, "k": 2},
        ],
        2,
    ),
)
def test_a_step_computes_the_same(options: dict[str, Any]) -> None:
    step = training_gpt(layers=4)
    found = distributed(step, checkpoint="offload", **options)
    names = [op.name for _, op in walk_functions(found)]
    assert names.count("train.offload") and names.count("train.fetch")
    assert_same_results(step, found)


def test_memory_falls_and_the_link_takes_its_time() -> None:
    step = training_gpt(layers=8)
    kept, found = distributed(step), distributed(step, checkpoint="offload")
    moved = offloaded_bytes(found)
    before, after = simulate(kept), simulate(found)
    (old,), (new,) = before.peak_memory_bytes, after.peak_memory_bytes
    assert moved > 0 and 0.5 * moved < old - new <= moved
    copies = sum(
        op.name in ("train.offload", "train.fetch") for _, op in walk_functions(found)
    )
    (kind,) = (op for op in found.walk() if isinstance(op, KindOp))
    assert kind.host_bandwidth is not None
    calls = 8  # of one function, which has all copies
    seconds = copies * calls * kind.launch_latency.value.data
    seconds += 2 * moved / kind.host_bandwidth.value.data
    assert after.step_time_s - before.step_time_s == pytest.approx(seconds, rel=1e-6)
    del kind.properties["host_bandwidth"]
    with pytest.raises(DistIRError, match=r"does not say how fast .*`host_bandwidth`"):
        simulate(found)
    kind.properties["host_bandwidth"] = FloatAttr(0.0, 64)
    with pytest.raises(VerifyException, match="must be positive"):
        found.verify()


def test_a_schedule_offloads_some_layers(tmp_path: Path, spawner: Spawner) -> None:
    module = build_gpt(layers=4, d_model=16, heads=4, vocab=32, batch=4, seq=8)
    s = Schedule()
    s["transformer.h.*"].first(0.5).recompute("offload")
    step = scheduled(module, s)
    DifferentiatePass(optimizer="sgd", learning_rate=0.1).apply(Context(), step)
    some = distributed(step, t=2)
    every = distributed(step, t=2, checkpoint="offload")
    assert 0 < offloaded_bytes(some) == offloaded_bytes(every) // 2
    arguments = random_arguments(step, 0)
    names = argument_names(entry_function(step))
    package = write_package(some, tmp_path)
    results = run_package(
        package, inputs=dict(zip(names, arguments, strict=True)), spawner=spawner
    )
    wanted = run_program(step, arguments)
    for name, value in zip(result_names(entry_function(step)), wanted, strict=True):
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-5)


def test_searches_know_what_it_costs() -> None:
    """In pipelines too, whose programs are never made."""
    step = training_gpt(layers=4)
    replace_cluster(step, load_cluster("cpu"))
    assert_judged_as_simulated(step, GridPlan(4, d=2, p=2, k=2, checkpoint="offload"))
