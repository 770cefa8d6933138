"""PyTorch modules with dropout train as PyTorch does where it draws our numbers."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import model
from support.programs import parse
from support.thoroughness import sampled
from support.training_programs import distributed
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.dropout import DropoutOp
from distir.frontends.imported_model import ImportedModel
from distir.frontends.torch.importer import import_torch
from distir.interpreters.reference import program_runner, run_program
from distir.launch.packages import Spawner, Training, run_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    result_names,
    scope_of,
    updated_arguments,
)
from distir.program.source_forms import source_types
from distir.program.weights import save_weights

Arrays = dict[str, Any]
STEPS = 3
LAYERS = 3


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.drop = nn.Dropout(0.25)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(self.drop(hidden))


class Network(nn.Module):
    """Three blocks and dropout before the first."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.drop(input))


def training_step(imported: ImportedModel, **options: Any) -> ImportedModel:
    for each in (FoldShapesPass(), OutlineRepeatsPass(), DifferentiatePass(**options)):
        each.apply(Context(), imported.module)
        imported.module.verify()
    return imported


def train(module: ModuleOp, given: Arrays, steps: int = STEPS) -> Arrays:
    """The losses and the final parameters in the reference interpreter."""
    entry = entry_function(module)
    names, roles = argument_names(entry), argument_roles(entry)
    values = [
        given[name]
        if name in given
        else np.zeros(
            shape_of(type_), np.int64 if name == "optimizer.step" else np.float32
        )
        for name, type_ in zip(names, source_types(entry)[0], strict=True)
    ]
    losses: list[Any] = []
    run = program_runner(module)
    for _ in range(steps):
        results = run(values)
        losses.append(results[result_names(entry).index("loss")])
        for result, argument in updated_arguments(entry).items():
            values[argument] = results[result]
    found = zip(names, roles, values, strict=True)
    return {"loss": np.stack(losses)} | {n: v for n, r, v in found if r == "parameter"}


def mask(op: DropoutOp, counter: int) -> torch.Tensor:
    """What that op multiplies with."""
    type_ = op.x.type
    program = parse(f"""
    func.func @main(%x: {type_}, %c: tensor<i64>) -> {type_} {{
      %y = train.dropout %x, %c {{ratio = {op.ratio.value.data} : f64,
        seed = {op.seed.value.data} : i64, stream = {op.stream.value.data} : i64}}
        : ({type_}, tensor<i64>) -> {type_}
      func.return %y : {type_}
    }}""")
    ones = np.ones(shape_of(type_), np.float32)
    return torch.tensor(run_program(program, [ones, np.array(counter)])[0])


@functools.cache
def network() -> tuple[ImportedModel, Arrays, Network]:
    torch.manual_seed(0)
    module, x = Network(), torch.randn(8, 16)
    imported = import_torch(module, (x,), training=True)
    options = {"loss": "mse", "optimizer": "sgd", "learning_rate": 0.5}
    imported = training_step(imported, **options, dropout_seed=9)
    labels = torch.randn(8, 16)
    given = {**imported.weights, "input": x.numpy(), "labels": labels.numpy()}
    return imported, given, module


def test_as_pytorch_with_the_same_numbers():
    imported, given, module = network()
    ops = {
        scope_of(op): op
        for op in reversed(list(imported.module.walk()))  # the forward's, not again
        if isinstance(op, DropoutOp)
    }
    assert set(ops) == {"drop", "blocks.*.drop"}
    x, labels = torch.tensor(given["input"]), torch.tensor(given["labels"])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    losses: list[float] = []
    for step in range(STEPS):
        h = x * mask(ops["drop"], step)
        for index, block in enumerate(module.blocks):
            kept = mask(ops["blocks.*.drop"], step * LAYERS + index)
            hidden = nn.functional.gelu(block.up(block.norm(h)))
            h = h + block.down(hidden * kept)
        loss = nn.functional.mse_loss(h, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = train(imported.module, given)
    np.testing.assert_allclose(found.pop("loss"), losses, rtol=1e-5)
    assert set(found) == {name for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(
            found[name], parameter.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name
        )


@functools.cache
def gpt2() -> tuple[ImportedModel, Arrays, Arrays]:
    """Hugging Face's, with its dropout of 0.1, its own fused attention's included."""
    case = model("gpt2_train")
    imported = import_torch(case.module, (), case.inputs, training=True)
    imported = training_step(imported, optimizer="sgd", learning_rate=0.5, momentum=0.5)
    labels = np.random.default_rng(0).integers(0, 127, (4, 8))
    given = {**imported.weights, **case.numpy_inputs, "labels": labels}
    return imported, given, train(imported.module, given)


def assert_equal(found: Arrays, expected: Arrays) -> None:
    assert set(found) == set(expected)
    for name, value in found.items():
        np.testing.assert_allclose(
            value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"d": 2, "t": 2, "zero": 2, "sequence_parallel": True},
            {"d": 4},
            {"d": 2, "checkpoint": "full"},
            {"t": 4},
        ],
        4,
    ),
)
def test_distributions_of_gpt2_train_alike(options: dict[str, Any]):
    imported, given, expected = gpt2()
    found = Counter(op.name for op in imported.module.walk())
    # Of the embeddings and two of a layer, and again; that of attention is part of it.
    assert found["train.dropout"] == 2 * 3 and not found["onnx.Softmax"]
    assert (
        found["train.dropped_attention"] == found["train.dropped_attention_grad"] == 1
    )
    assert_equal(train(distributed(imported.module, **options), given), expected)


@pytest.mark.slow
def test_gpt2_on_processes(tmp_path: Path, spawner: Spawner):
    imported, given, expected = gpt2()
    weights = tmp_path / "model.safetensors"
    save_weights(weights, imported.weights)
    module = distributed(imported.module, d=2, t=2)
    package = write_package(module, tmp_path / "package", weights)
    batch = {name: given[name] for name in given if name not in imported.weights}
    found = run_package(
        package,
        inputs=batch,
        weights=weights,
        timeout_s=120,
        spawner=spawner,
        training=Training(STEPS),
    )
    assert_equal(found, expected)
