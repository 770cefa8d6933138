"""
The acceptance of the whole chain: Hugging Face models and an MLP, exported by both of
PyTorch's exporters, distributed, verified, and equal to PyTorch.
"""

import functools
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support import models
from support.models import EXPORTERS, EXPORTS, model
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.imported_model import ImportedModel
from distir.frontends.torch.export.exporter import Exporter
from distir.interpreters.reference import run_program
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.passes.distribute import DistributePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.program import argument_names, entry_function, functions
from distir.program.weights import save_weights

MODELS = ("mlp", "gpt2", "bert", "llama")
DEGREES = [(2, 2), (2, 1), (1, 4), (1, 2)]
CASES = list(product(MODELS, EXPORTERS, DEGREES))


@functools.cache
def imported(name: str, exporter: Exporter) -> ImportedModel:
    found = models.imported(name, exporter)
    found = replace(found, module=found.module.clone())
    OutlineRepeatsPass().apply(Context(), found.module)
    return found


def distributed(name: str, exporter: Exporter, degrees: tuple[int, int]) -> ModuleOp:
    module = imported(name, exporter).module.clone()
    DistributePass(d=degrees[0], t=degrees[1]).apply(Context(), module)
    return module


def arguments(name: str, exporter: Exporter) -> list[npt.NDArray[np.generic]]:
    found = imported(name, exporter)
    values = {**found.weights, **model(name).numpy_inputs}
    return [values[n] for n in argument_names(entry_function(found.module))]


def assert_equals_pytorch(name: str, results: list[npt.NDArray[np.generic]]) -> None:
    expected = list(model(name).numpy_outputs.values())
    for actual, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_sequential(name: str, exporter: Exporter) -> None:
    found = imported(name, exporter)
    if name != "mlp":
        calls = [op for op in found.module.walk() if op.name == "func.call"]
        assert len(functions(found.module)) == 2, "one function for the repeated layers"
        assert len(calls) == 2
    assert_equals_pytorch(name, run_program(found.module, arguments(name, exporter)))


@pytest.mark.parametrize(
    ("name", "exporter", "degrees"),
    chosen(CASES, [(name, "dynamo", (2, 2)) for name in ("mlp", "gpt2")]),
)
def test_distributed(name: str, exporter: Exporter, degrees: tuple[int, int]) -> None:
    module = distributed(name, exporter, degrees)
    assert_equals_pytorch(name, run_program(module, arguments(name, exporter)))


@pytest.mark.parametrize(
    ("name", "exporter", "degrees"),
    chosen(
        CASES,
        [
            *((name, "dynamo", (2, 2)) for name in ("bert", "llama")),
            ("gpt2", "torchscript", (1, 4)),
        ],
    ),
)
def test_on_gloo(
    name: str,
    exporter: Exporter,
    degrees: tuple[int, int],
    tmp_path: Path,
    spawner: Spawner,
) -> None:
    """The emitted program on real processes gives what PyTorch gives."""
    weights = tmp_path / "model.safetensors"
    save_weights(weights, imported(name, exporter).weights)
    write_package(distributed(name, exporter, degrees), tmp_path / "package", weights)
    results = run_package(
        tmp_path / "package",
        inputs=model(name).numpy_inputs,
        weights=weights,
        timeout_s=120,
        spawner=spawner,
    )
    assert_equals_pytorch(name, list(results.values()))
