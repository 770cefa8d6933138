"""Training steps that tests run, and what one process makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.simulation import Simulation
from distir.launch.packages import Spawner, Training, run_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.distribution import distribute
from distir.planning.grid import Evaluator, GridPlan
from distir.planning.result import Simulated
from distir.program import argument_names, argument_roles, entry_function
from support.programs import parse


def training_mlp(batch: int = 8, **options: object) -> ModuleOp:
    """Returns a step of a two-layer MLP."""
    module = build_mlp(layers=2, d_model=8, batch=batch)
    differentiate = DifferentiatePass(**({"loss": "mse"} | options))  # type: ignore[arg-type]
    differentiate.apply(Context(), module)
    return module


def training_gpt(dropout: float = 0.0, layers: int = 2, **options: object) -> ModuleOp:
    """Returns a step of a GPT on 4 sequences of 8."""
    module = build_gpt(
        layers=layers, d_model=16, heads=4, vocab=32, batch=4, seq=8, dropout=dropout
    )
    differentiate = DifferentiatePass(**options)  # type: ignore[arg-type]
    differentiate.apply(Context(), module)
    return module


def training_head(
    places: tuple[int, ...],
    classes: int,
    ignored: int | None = None,
    dtype: str = "f32",
) -> ModuleOp:
    """Returns a step of a linear layer that learns from the mean of its cross-entropies."""
    sizes = "x".join(str(n) for n in places)
    x, w = f"tensor<{sizes}x6x{dtype}>", f"tensor<6x{classes}x{dtype}>"
    y = f"tensor<{sizes}x{classes}x{dtype}>"
    module = parse(f"""
        func.func @main(
          %x: {x} {{dist.role = "input", dist.name = "x"}},
          %w: {w} {{dist.role = "parameter", dist.name = "w"}}
        ) -> {y} {{
          %y = onnx.MatMul(%x, %w) : ({x}, {w}) -> {y}
          func.return %y : {y}
        }}""")
    step = DifferentiatePass(optimizer="sgd", learning_rate=1.0, ignore_index=ignored)
    step.apply(Context(), module)
    return module


def distributed(module: ModuleOp, **options: object) -> ModuleOp:
    """
    Returns the program distributed over devices of the cluster of CPUs; the given one stays
    as it is.
    """
    module = module.clone()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(load_cluster("cpu"), first)
    DistributePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    module.verify()
    return module


def package(module: ModuleOp, folder: Path, **options: object) -> Path:
    """Writes the package of the distributed program; returns its folder."""
    return write_package(distributed(module, **options), folder)


def batches(module: ModuleOp) -> dict[str, npt.NDArray[Any]]:
    """Returns random inputs and labels of a training step."""
    entry = entry_function(module)
    values = zip(
        argument_names(entry),
        argument_roles(entry),
        random_arguments(module, 7),
        strict=True,
    )
    return {name: v for name, role, v in values if role in ("input", "label")}


def train(
    folder: Path, module: ModuleOp, spawner: Spawner, training: Training, **how: Any
) -> dict[str, npt.NDArray[Any]]:
    """
    Returns the losses and final parameters of a training of a step that is distributed as
    the options `how` say; its package is written to a folder in `folder`.
    """
    made = package(module, folder / "-".join(f"{k}{v}" for k, v in how.items()), **how)
    return run_package(made, inputs=batches(module), spawner=spawner, training=training)


def on_processes(
    module: ModuleOp,
    distributed: ModuleOp,
    spawner: Spawner,
    folder: Path,
) -> None:
    """Both programs give the same, the second one as processes."""
    arguments = random_arguments(module, seed=0)
    expected = run_program(module, arguments)
    write_package(distributed, folder)
    names = argument_names(entry_function(module))
    inputs = dict(zip(names, arguments, strict=True))
    results = run_package(folder, inputs=inputs, timeout_s=60, spawner=spawner)
    for actual, value in zip(results.values(), expected, strict=True):
        np.testing.assert_allclose(actual, value, rtol=1e-3, atol=1e-4)


def assert_close(
    found: dict[str, npt.NDArray[Any]], expected: dict[str, npt.NDArray[Any]]
) -> None:
    """Raises AssertionError, which names the array, if two trainings' results differ."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, 1e-4, 1e-4, err_msg=name)


def assert_descended(found: Mapping[str, npt.NDArray[Any]], module: Any) -> None:
    """
    Checks that a step with a learning rate of 1 took from each parameter of a module of
    PyTorch the gradient that this module has.
    """
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        expected = (parameter - parameter.grad).detach().numpy()
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=2e-5)


def assert_judged_as_simulated(step: ModuleOp, plan: GridPlan) -> Simulation:
    """
    Checks that a search judges a plan as what `distribute` makes of it is simulated;
    returns that simulation. The program is distributed.
    """
    found = Evaluator(lambda batch: step.clone()).evaluate(plan)
    distribute(step, plan.options())
    simulation = simulate(step)
    assert isinstance(found, Simulated)
    assert found.step_time_s == simulation.step_time_s
    assert found.peak_memory_bytes == max(simulation.peak_memory_bytes)
    return simulation
