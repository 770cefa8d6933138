"""
Random training programs under every strategy: data, tensor and pipeline parallelism,
micro-batches, ZeRO, activation checkpoints, sequence parallelism, schedules, overlapped
communication. What a step computes is the same before and after; refusals are errors
that users can read.
"""

from __future__ import annotations

from typing import Any

from fuzz.equality import assert_same
from fuzz.lockstep import run_ranks
from fuzz.models import built_model, differentiate, layered_model
from hypothesis import strategies as st
from support.pipelines import arguments_of
from support.random_programs import Draw
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.interpreters.reference import run_program
from distir.passes.distribute import DistributePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.pipelining.registry import SCHEDULES
from distir.program import (
    entry_function,
    functions,
    parameters_of_states,
    updated_arguments,
)
from distir.transforms.memory.checkpoint_policies import POLICIES

EXAMPLES = 3
"""Of a round."""

LISTS = ("save:onnx.MatMul", "save:onnx.Add", "recompute:onnx.Mul+onnx.MatMul")
"""Policies that list ops; they are refused where no layer has these."""

BACKWARD = sorted(SCHEDULES.keys() - {"forward"})
"""Schedules of training steps."""


def strategy(draw: Draw, module: ModuleOp) -> dict[str, Any]:
    """Options of `distribute` that can fit a training step."""
    found: dict[str, Any] = {
        "d": draw(st.sampled_from([1, 2, 2, 4])),
        "t": draw(st.sampled_from([1, 2, 2])),
        "overlap": draw(st.integers(0, 3)) == 0,
        "buckets": draw(st.booleans()),
    }
    updates = bool(updated_arguments(entry_function(module)))
    if updates and len(functions(module)) > 1:
        found["checkpoint"] = draw(st.sampled_from((*POLICIES, *LISTS)))
    if parameters_of_states(entry_function(module)):
        found["offload_states"] = draw(st.booleans())
    if found["d"] > 1 and updates:
        found["zero"] = draw(st.integers(0, 3))
    if found.get("zero"):
        found["r"] = draw(st.sampled_from([1, 1, 2]))
    if found["t"] > 1:
        found["sequence_parallel"] = draw(st.integers(0, 3)) == 0
    if draw(st.booleans()):
        found["p"] = draw(st.sampled_from([1, 2, 2, 3]))
        found["k"] = draw(st.sampled_from([1, 2, 2, 4, 3]))
        if found["k"] > 1 and found.get("zero", 0) > 1:
            found["no_sync"] = draw(st.integers(0, 3)) == 0
    if found.get("p", 1) > 1:
        found["schedule"] = draw(st.sampled_from(["", "", *BACKWARD]))
        found["stages"] = draw(st.sampled_from([(), (), (), ("uniform",)]))
        found["blocking_sends"] = not found["overlap"] and draw(st.booleans())
    return found


def step(draw: Draw) -> ModuleOp:
    """A random training step."""
    make = draw(
        st.sampled_from([layered_model, layered_model, layered_model, built_model])
    )
    module, loss = make(draw)
    if draw(st.integers(0, 4)) == 0:
        OutlineRepeatsPass().apply(Context(), module)
    differentiate(draw, loss).apply(Context(), module)
    module.verify()
    return module


def distribute(module: ModuleOp, options: dict[str, Any]) -> ModuleOp | None:
    """The distributed program; None where that is refused."""
    module = module.clone()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(load_cluster("dgx2", 32), first)
    try:
        DistributePass(**options).apply(Context(), module)
    except DistIRError:
        return None
    module.verify()
    return module


def case(draw: Draw) -> list[str]:
    """One step under up to three strategies; what came of it."""
    module = step(draw)
    arguments = arguments_of(module)
    expected = run_program(module, arguments)
    found: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        options = strategy(draw, module)
        result = distribute(module, options)
        if result is None:
            found.append("refused")
            continue
        run = run_ranks if draw(st.booleans()) else run_program
        try:
            same = assert_same(module, arguments, expected, run(result, arguments))
        except Exception as error:
            error.add_note(f"distributed with {options}, run by {run.__name__}")
            raise
        found.append("equal" if same else "ill-conditioned")
    return found
