"""Learning rates that change from step to step: PyTorch's schedulers, and real runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.thoroughness import sampled
from support.training_programs import batches, package
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)
from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, f64

from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_mlp
from distir.interpreters.reference import program_runner
from distir.launch.packages import LearningRate, Spawner, Training, run_package
from distir.passes.differentiate import DifferentiatePass
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    updated_arguments,
)
from distir.runtime.loop.settings import StepSettings
from distir.runtime.runtime import ProgramError, Tensor
from distir.transforms.step_settings import add_step_settings

FULL, STEPS = 0.3, 12


def by_pytorch(schedule: StepSettings) -> list[float]:
    """The learning rates that PyTorch's schedulers give."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=FULL)
    warmup, left = schedule.warmup, schedule.last - schedule.warmup
    parts: list[LRScheduler] = []
    if warmup:
        parts.append(LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1))
    if schedule.decay == "cosine":
        parts.append(CosineAnnealingLR(optimizer, left, eta_min=schedule.least))
    elif schedule.decay == "linear":
        parts.append(LinearLR(optimizer, 1.0, schedule.least / FULL, left))
    else:
        parts.append(LinearLR(optimizer, 1.0, 1.0))
    whole = SequentialLR(optimizer, parts, [warmup]) if warmup else parts[0]
    found: list[float] = []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        whole.step()
    return found


@pytest.mark.parametrize("warmup", [0, 2, 5])
@pytest.mark.parametrize("decay", ["none", "linear", "cosine"])
@pytest.mark.parametrize("least", [0.0, 0.06])
def test_schedules_are_those_of_pytorch(warmup: int, decay: str, least: float):
    schedule = StepSettings(warmup, decay, least, STEPS)
    spec = Tensor("lr", setting="learning_rate", default=FULL)
    found = [schedule.at(step, spec) for step in range(1, STEPS + 1)]
    assert found == pytest.approx(by_pytorch(schedule), rel=1e-12)


def test_a_decay_stays_where_it_has_fallen_to():
    schedule = StepSettings(2, "cosine", 0.1, last=4)
    assert schedule.rate(4, 1.0) == schedule.rate(9, 1.0) == 0.1
    assert StepSettings(4, "linear", 0.1, last=4).rate(4, 1.0) == 0.1


def test_given_values_are_taken_step_by_step():
    schedule = StepSettings(given={"weight_decay": [0.5, 0.25]})
    decay = Tensor("wd", setting="weight_decay", default=0.1)
    rate = Tensor("lr", setting="learning_rate", default=FULL)
    assert (schedule.at(2, decay), schedule.at(2, rate)) == (0.25, FULL)
    with pytest.raises(ProgramError, match="weight_decay for 2 steps, and none for"):
        schedule.at(3, decay)


def training_step(optimizer: str) -> ModuleOp:
    module = build_mlp(layers=2, d_model=8, batch=4)
    DifferentiatePass(
        loss="mse",
        optimizer=optimizer,
        learning_rate=0.1,
        weight_decay=0.05,
        momentum=0.9 if optimizer == "sgd" else 0.0,
    ).apply(Context(), module)
    return module


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_arguments_are_what_updates_use(optimizer: str):
    """A program with these properties and one that is given them compute the same."""
    module = training_step(optimizer)
    given = module.clone()
    for op in given.walk():
        if op.name == f"train.{optimizer}":
            nine = FloatAttr(9.0, f64)
            op.properties |= {"learning_rate": nine, "weight_decay": nine}
    add_step_settings(given)
    given.verify()
    roles = argument_roles(entry_function(given))
    rng = np.random.default_rng(0)
    values: list[Any] = [
        rng.random(shape_of(arg.type)).astype(
            np.int64 if "step" in name else np.float32
        )
        for arg, name in zip(
            entry_function(module).args,
            argument_names(entry_function(module)),
            strict=True,
        )
    ]
    assert roles[len(values) :] == ["setting", "setting"]
    expected = program_runner(module)(values)
    found = program_runner(given)([*values, np.array(0.1), np.array(0.05)])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    other = program_runner(given)([*values, np.array(0.2), np.array(0.05)])
    changed = updated_arguments(entry_function(module))
    parameter = next(r for r, a in changed.items() if roles[a] == "parameter")
    assert not np.array_equal(other[parameter], expected[parameter])


@pytest.mark.parametrize(
    ("optimizer", "options"),
    sampled([("adamw", {"p": 2, "k": 2, "d": 2, "zero": 1}), ("sgd", {"t": 2})], 2),
)
def test_a_run_follows_its_schedule(
    optimizer: str, options: dict[str, int], tmp_path: Path, spawner: Spawner
):
    module = training_step(optimizer)
    rate = LearningRate(warmup=2, decay="cosine", least=0.01)
    training = Training(4, learning_rate=rate)
    folder = package(module, tmp_path / "package", **options)
    found = run_package(
        folder, inputs=batches(module), spawner=spawner, training=training
    )
    schedule = StepSettings(2, "cosine", 0.01, 4)
    values = [schedule.rate(done, 0.1) for done in range(4)]
    single = package(module, tmp_path / "single")
    given = Training(4, settings={"learning_rate": values})
    expected = run_package(
        single, inputs=batches(module), spawner=spawner, training=given
    )
    constant = run_package(
        single, inputs=batches(module), spawner=spawner, training=Training(4)
    )
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    assert abs(found["loss"][-1] - constant["loss"][-1]) > 1e-4


def test_a_package_without_a_learning_rate_refuses_a_schedule(
    tmp_path: Path, spawner: Spawner
):
    module = training_step("sgd")
    folder = package(module, tmp_path / "package")
    changed = 0
    for file in folder.glob("*.py"):
        text = re.sub(r"setting=(.)learning_rate", r"setting=\1rate", file.read_text())
        changed += text != file.read_text()
        file.write_text(text)
    assert changed == 1
    with pytest.raises(DistIRError, match="no learning rate that could be set"):
        run_package(
            folder,
            inputs=batches(module),
            spawner=spawner,
            training=Training(2, learning_rate=LearningRate(warmup=1)),
        )


def test_settings_of_a_file_that_is_none_are_refused(tmp_path: Path):
    from distir.runtime.loop.settings import read

    (tmp_path / "s.json").write_text(json.dumps({"learning_rate": 3}))
    with pytest.raises(ProgramError, match="a list of numbers for each setting"):
        read(tmp_path / "s.json")
