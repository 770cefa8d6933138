"""Compares three steps of AdamW: those of an imported model and PyTorch's own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist_attributes import UPDATES
from distir.dialects.tensors import shape_of
from distir.frontends.imported_model import ImportedModel
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import program_runner
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    result_attributes,
    updated_arguments,
)

STEPS = 3
# Where a gradient is only rounding errors, an update is those divided by epsilon.
OPTIONS: dict[str, Any] = {"learning_rate": 1e-2, "epsilon": 1e-3}

Arrays = dict[str, npt.NDArray[Any]]


def exported_by_default(
    module: torch.nn.Module,
    args: Sequence[Any],
    path: Path,
    kwargs: Mapping[str, Any] | None = None,
) -> Path:
    """Returns the file that `torch.onnx.export` writes without options."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), tuple(args), kwargs=dict(kwargs or {}), verbose=False
        )
    assert program is not None
    program.save(path)
    return path


def exported_by_trace(
    module: torch.nn.Module, args: Sequence[Any], path: Path, **options: Any
) -> Path:
    """Returns the file that PyTorch's older exporter writes without further options."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), tuple(args), path, dynamo=False, **options)
    return path


def differentiated(
    imported: ImportedModel, loss: str = "mse", output: int = 0
) -> ImportedModel:
    """Turns the model into a training step, in place."""
    for each in (
        FoldShapesPass(),
        OutlineRepeatsPass(),
        DifferentiatePass(loss=loss, output=output, **OPTIONS),
    ):
        each.apply(Context(), imported.module)
    imported.module.verify()
    return imported


def trained_names(imported: ImportedModel) -> set[str]:
    """Returns the names of the parameters that a training step updates."""
    function = entry_function(imported.module)
    updated = {UPDATES.of(a) for a in result_attributes(function)}
    names, roles = argument_names(function), argument_roles(function)
    return {
        name
        for name, role in zip(names, roles, strict=True)
        if role == "parameter" and name in updated
    }


def trained(imported: ImportedModel, inputs: Arrays) -> tuple[list[float], Arrays]:
    """
    Returns the loss of every step and the weights after the last, by the reference
    interpreter.
    """
    function = entry_function(imported.module)
    names, roles = argument_names(function), argument_roles(function)
    values: list[npt.NDArray[Any]] = []
    for arg, name, role in zip(function.body.block.args, names, roles, strict=True):
        if role == "state":
            dtype = np.int64 if name == "optimizer.step" else np.float32
            values.append(np.zeros(shape_of(arg.type), dtype))
        else:
            values.append(
                imported.weights[name]
                if role != "input" and role != "label"
                else inputs[name]
            )
    losses: list[float] = []
    run = program_runner(imported.module)
    for _ in range(STEPS):
        results = run(values)
        losses.append(float(results[0]))
        for result, argument in updated_arguments(function).items():
            values[argument] = results[result]
    return losses, dict(zip(names, values, strict=True))


def trained_by_pytorch(
    module: torch.nn.Module, loss_of: Callable[[torch.nn.Module], torch.Tensor]
) -> tuple[list[float], Arrays, set[str]]:
    """
    Returns the loss of every step, the parameters after the last, and which were trained.
    """
    module = copy.deepcopy(module).eval()
    optimizer = torch.optim.AdamW(
        [p for p in module.parameters() if p.requires_grad],
        lr=OPTIONS["learning_rate"],
        eps=OPTIONS["epsilon"],
    )
    losses: list[float] = []
    for _ in range(STEPS):
        loss = loss_of(module)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return (
        losses,
        {n: p.detach().numpy() for n, p in parameters.items()},
        {n for n, p in parameters.items() if p.grad is not None},
    )


def losses_of_steps(
    module: ModuleOp, given: Mapping[str, npt.NDArray[Any]]
) -> list[float]:
    """
    The losses of `STEPS` steps, interpreted: arguments in `given` have these values first, the
    others random ones.
    """
    function = entry_function(module)
    updates = updated_arguments(function)
    arguments = random_arguments(module, 0)
    for i, name in enumerate(argument_names(function)):
        if name in given:
            arguments[i] = given[name]
    run, found = program_runner(module), list[float]()
    for _ in range(STEPS):
        results = run(arguments)
        found.append(float(results[0]))
        for result, argument in updates.items():
            arguments[argument] = results[result]
    return found


def assert_equal_steps(
    imported: ImportedModel,
    module: torch.nn.Module,
    inputs: Arrays,
    loss_of: Callable[[torch.nn.Module], torch.Tensor],
    tolerance: float = 1e-5,
) -> None:
    """
    Checks that a training step gives PyTorch's losses and parameters, relative to the
    largest number of each, and trains what PyTorch trains and nothing else.
    """
    before = {n: a.copy() for n, a in imported.weights.items()}
    losses, found = trained(imported, inputs)
    expected_losses, expected, moving = trained_by_pytorch(module, loss_of)
    np.testing.assert_allclose(losses, expected_losses, rtol=tolerance)
    assert trained_names(imported) <= moving
    for name in found.keys() & expected.keys():
        largest = np.abs(expected[name]).max()
        error = np.abs(found[name] - expected[name]).max()
        assert error <= tolerance * largest, f"{name}: {error} of {largest}"
    others = imported.weights.keys() - trained_names(imported)
    for name in others:
        np.testing.assert_array_equal(found[name], before[name])
    # Of tied parameters a file keeps one.
    tied = {id(p) for n, p in module.named_parameters() if n in moving}
    kept = dict(module.named_parameters(remove_duplicate=False))
    assert {id(kept[n]) for n in trained_names(imported)} == tied


def assert_steps_equal_pytorch(
    imported: ImportedModel, module: torch.nn.Module, x: torch.Tensor
) -> None:
    """Checks the same for the mean squared error of a module of one input and result."""
    labels = torch.randn(
        module.eval()(x).shape, generator=torch.Generator().manual_seed(2)
    )
    name = next(
        n
        for n, r in zip(
            argument_names(entry_function(imported.module)),
            argument_roles(entry_function(imported.module)),
            strict=True,
        )
        if r == "input"
    )
    differentiated(imported)
    assert_equal_steps(
        imported,
        module,
        {name: x.numpy(), "labels": labels.numpy()},
        lambda m: torch.nn.functional.mse_loss(m(x), labels),
    )
