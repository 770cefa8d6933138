"""
The acceptance of training: steps of Hugging Face models, a residual network and an MLP
equal PyTorch's own, sequential and under every strategy, in the reference interpreter
and on real processes.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.thoroughness import IS_THOROUGH
from support.torch_training import (
    Arrays,
    assert_equals_pytorch,
    batch,
    training_step,
)
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.tensors import shape_of
from distir.interpreters.reference import program_runner
from distir.launch.packages import Spawner, Training, run_package
from distir.lowering.torch_package import write_package
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.distribute import DistributePass
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    result_names,
    updated_arguments,
)
from distir.program.source_forms import source_types
from distir.program.weights import save_weights

STEPS = 5 if IS_THOROUGH else 3

MODELS = ("mlp", "resnet", "resnet_train", "gpt2", "bert", "llama")
LAYERED = ("resnet", "resnet_train", "gpt2", "bert", "llama")
NORMALIZED = ("gpt2", "bert", "llama")

STRATEGIES: dict[str, dict[str, Any]] = {
    "d4": {"d": 4},
    "t4": {"t": 4},
    "d2-t2": {"d": 2, "t": 2},
}
STRATEGIES |= {
    f"zero{stage}-{name}": {"zero": stage, **STRATEGIES[name]}
    for stage in (1, 2, 3)
    for name in ("d4", "d2-t2")
}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "full": {"checkpoint": "full", "d": 2, "t": 2},
    "selective": {"checkpoint": "selective", "d": 2, "t": 2},
    "every2": {"every": 2, "d": 2, "t": 2},
    "full-t4": {"checkpoint": "full", "t": 4},
    "full-zero3-d4": {"checkpoint": "full", "zero": 3, "d": 4},
}
SEQUENCE_PARALLEL: dict[str, dict[str, Any]] = {
    "sp-t2": {"t": 2},
    "sp-t4": {"t": 4},
    "sp-d2-t2": {"d": 2, "t": 2},
    "sp-zero1-full": {"d": 2, "t": 2, "zero": 1, "checkpoint": "full"},
    "sp-zero2-selective": {"d": 2, "t": 2, "zero": 2, "checkpoint": "selective"},
    "sp-zero3-every2": {"d": 2, "t": 2, "zero": 3, "every": 2},
}
SEQUENCE_PARALLEL = {
    name: {"sequence_parallel": True, **options}
    for name, options in SEQUENCE_PARALLEL.items()
}
ALL = STRATEGIES | CHECKPOINTS | SEQUENCE_PARALLEL
TORCHSCRIPT = ("d2-t2", "zero3-d2-t2", "sp-zero1-full")
"""What the older exporter's programs are tried with."""

Case = tuple[str, str, str]


def cases() -> list[Case]:
    """Every model, exporter and strategy that go together."""
    found: list[Case] = []
    for name in MODELS:
        strategies = list(STRATEGIES)
        if name in LAYERED:
            strategies += CHECKPOINTS
        if name in NORMALIZED:
            strategies += SEQUENCE_PARALLEL
        found += [(name, "dynamo", strategy) for strategy in strategies]
        found += [
            (name, "torchscript", strategy)
            for strategy in TORCHSCRIPT
            if strategy in strategies
        ]
    return found


def sampled(sample: set[Case]) -> list[Any]:
    """All cases; those outside the sample only in `make test-all`."""
    everything = cases()
    assert sample <= set(everything)
    return [
        pytest.param(*case, marks=() if case in sample else pytest.mark.slow)
        for case in everything
    ]


REFERENCE_SAMPLE: set[Case] = {
    ("resnet_train", "dynamo", "full"),
    ("gpt2", "dynamo", "sp-zero2-selective"),
}
GLOO_SAMPLE: set[Case] = {
    ("resnet", "dynamo", "zero3-d4"),
    ("gpt2", "dynamo", "sp-zero1-full"),
}


@functools.cache
def distributed(name: str, exporter: str, strategy: str) -> ModuleOp:
    module = training_step(name, exporter).module.clone()
    options = dict(ALL[strategy])
    if every := options.pop("every", None):
        ActivationCheckpointPass(every=every).apply(Context(), module)
    DistributePass(**options).apply(Context(), module)
    module.verify()
    return module


def by_reference(name: str, exporter: str, module: ModuleOp) -> Arrays:
    """What the reference interpreter makes of the same training."""
    entry = entry_function(module)
    names, roles = argument_names(entry), argument_roles(entry)
    given = {**training_step(name, exporter).weights, **batch(name)}
    values: list[npt.NDArray[Any]] = []
    types = source_types(entry)[0]
    for each, role, type_ in zip(names, roles, types, strict=True):
        if role == "state" and each not in given:
            dtype = np.int64 if each == "optimizer.step" else np.float32
            values.append(np.zeros(shape_of(type_), dtype))
        else:
            values.append(given[each])
    updates = updated_arguments(entry)
    losses: list[npt.NDArray[Any]] = []
    run = program_runner(module)
    for _ in range(STEPS):
        results = run(values)
        losses.append(results[result_names(entry).index("loss")])
        for result, argument in updates.items():
            values[argument] = results[result]
    return {"loss": np.stack(losses)} | {
        each: value
        for each, role, value in zip(names, roles, values, strict=True)
        if role == "parameter" or (role == "state" and each in given)
    }


OLDER = ("gpt2",)
"""The model whose program by the older exporter is trained in `make test`."""


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        *((name, "dynamo") for name in MODELS),
        *(
            pytest.param(
                name, "torchscript", marks=() if name in OLDER else pytest.mark.slow
            )
            for name in MODELS
        ),
    ],
)
def test_sequential(name: str, exporter: str) -> None:
    module = training_step(name, exporter).module
    assert_equals_pytorch(name, by_reference(name, exporter, module))


@pytest.mark.parametrize(("name", "exporter", "strategy"), sampled(REFERENCE_SAMPLE))
def test_distributed(name: str, exporter: str, strategy: str) -> None:
    module = distributed(name, exporter, strategy)
    assert_equals_pytorch(name, by_reference(name, exporter, module))


@pytest.mark.parametrize(("name", "exporter", "strategy"), sampled(GLOO_SAMPLE))
def test_on_gloo(
    name: str, exporter: str, strategy: str, tmp_path: Path, spawner: Spawner
) -> None:
    """The emitted program on real processes trains as PyTorch does."""
    weights = tmp_path / "model.safetensors"
    save_weights(weights, training_step(name, exporter).weights)
    module = distributed(name, exporter, strategy)
    write_package(module, tmp_path / "package", weights)
    results = run_package(
        tmp_path / "package",
        inputs=batch(name),
        weights=weights,
        timeout_s=120,
        spawner=spawner,
        training=Training(STEPS),
    )
    assert_equals_pytorch(name, results)
