"""Training steps of the models, and the results of PyTorch's own training."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from xdsl.context import Context

from distir.frontends.imported_model import ImportedModel
from distir.frontends.torch.export.exporter import Exporter
from distir.passes.differentiate import DifferentiatePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from support.models import WITH_MSE, imported, model

Arrays = dict[str, npt.NDArray[Any]]

TOLERANCE = 1e-4
# Keys have a bias whose gradient is zero but for rounding. With PyTorch's epsilon of 1e-8
# Adam would take steps in the direction of that rounding.
OPTIONS: dict[str, Any] = {"learning_rate": 1e-2, "epsilon": 1e-5}


@functools.cache
def training_step(name: str, exporter: Exporter = "dynamo") -> ImportedModel:
    """Returns the sequential training step and the weights it starts from."""
    found = imported(name, exporter)
    found = replace(found, module=found.module.clone())
    OutlineRepeatsPass().apply(Context(), found.module)
    loss = "mse" if name in WITH_MSE else "cross_entropy"
    DifferentiatePass(loss=loss, **OPTIONS).apply(Context(), found.module)
    found.module.verify()
    return found


@functools.cache
def batch(name: str) -> Arrays:
    """Returns the inputs and labels of every step."""
    shape = next(iter(model(name).outputs.values())).shape
    random = np.random.default_rng(0)
    if name in WITH_MSE:
        labels: npt.NDArray[Any] = random.normal(size=shape).astype(np.float32)
    else:
        labels = random.integers(0, shape[-1], shape[:-1])
    return {**model(name).numpy_inputs, "labels": labels}


@dataclass(frozen=True)
class Trained:
    """
    PyTorch's own training: the losses, the parameters (and in training mode the running
    statistics) before and after it, under each of their names, how many there are, and
    the names of those that change.
    """

    losses: npt.NDArray[Any]
    before: Arrays
    after: Arrays
    count: int
    moving: set[str]


@functools.cache
def by_pytorch(name: str, steps: int) -> Trained:
    module = copy.deepcopy(model(name).module)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    statistics = {n: b for n, b in module.named_buffers() if ".running_" in f".{n}"}
    if module.training:
        parameters |= statistics  # type: ignore[arg-type]
    before = {n: p.detach().numpy().copy() for n, p in parameters.items()}
    labels = torch.tensor(batch(name)["labels"])
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=OPTIONS["learning_rate"], eps=OPTIONS["epsilon"]
    )
    losses: list[float] = []
    for _ in range(steps):
        output = module(**model(name).inputs)
        if not isinstance(output, torch.Tensor):
            output = next(iter(output.values()))
        if name in WITH_MSE:
            loss = torch.nn.functional.mse_loss(output, labels)
        else:
            loss = torch.nn.functional.cross_entropy(
                output.flatten(0, -2), labels.flatten()
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(
        np.array(losses),
        before,
        {n: p.detach().numpy() for n, p in parameters.items()},
        len({id(p) for p in parameters.values()}),
        {n for n, p in parameters.items() if n in statistics or p.grad is not None},
    )


def assert_equals_pytorch(name: str, results: Arrays) -> None:
    """
    Checks that losses and parameters are those of PyTorch, relative to the largest number.
    """
    expected = by_pytorch(name, len(results["loss"]))
    assert len(results) == 1 + expected.count
    for key, found in results.items():
        wanted = expected.losses if key == "loss" else expected.after[key]
        largest = np.abs(wanted).max()
        error = np.abs(found - wanted).max() / largest
        assert error < TOLERANCE, f"{key}: relative error {error}"
        if key in expected.moving:
            moved = np.abs(wanted - expected.before[key]).max() / largest
            assert moved > 2 * TOLERANCE, f"{key} hardly moves; the test is blind"
