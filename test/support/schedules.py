"""What tests of schedules share."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import layout_of
from distir.frontends.models.basic import build_gpt
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function
from distir.scheduling import Schedule
from distir.scheduling.run import apply_schedule
from distir.scheduling.script import add_schedules
from support.pipelines import arguments_of
from support.sequential import sequential_results


def gpt(layers: int = 4) -> ModuleOp:
    return build_gpt(layers=layers, d_model=16, heads=4, vocab=32, batch=4, seq=8)


def scheduled(module: ModuleOp, schedule: Schedule, *chosen: str) -> ModuleOp:
    """Returns the program after a schedule has been applied."""
    module = module.clone()
    add_schedules(module, [schedule.recorded()])
    module.verify()
    apply_schedule(module, "schedule", chosen)
    module.verify()
    return module


def splits(module: ModuleOp) -> dict[str, str]:
    """Returns the dimensions of a distributed program's arguments, by name."""
    entry = entry_function(module)
    found: dict[str, str] = {}
    for name, type_ in zip(
        argument_names(entry), entry.function_type.inputs, strict=True
    ):
        layout = layout_of(type_)
        assert layout is not None
        found[name] = str(layout).removeprefix("<@mesh").removesuffix(">")
    return found


def assert_same_results(module: ModuleOp, other: ModuleOp) -> None:
    arguments = arguments_of(module)
    for got, wanted in zip(
        run_program(other, arguments),
        sequential_results(module, arguments),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
