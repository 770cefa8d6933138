"""The optimizer's states in the host's memory: the same training, and what it costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.schedules import assert_same_results
from support.thoroughness import sampled
from support.training_programs import (
    batches,
    distributed,
    training_gpt,
    training_mlp,
)
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType

from distir.dialects.device import KindOp
from distir.dialects.host import is_on_host
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.exports.plan import eager_plan
from distir.frontends.models.basic import build_mlp
from distir.interpreters.simulator import simulate
from distir.launch.memory import count_memory
from distir.launch.packages import Spawner, Training, run_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_roles, entry_function
from distir.sharding.layout import local_type
from distir.sharding.mesh import meshes
from distir.transforms.state_offloading import offload_states


def bytes_by_role(module: ModuleOp) -> Counter[str]:
    """The bytes of a program's arguments on one device."""
    found, entry = Counter[str](), entry_function(module)
    for argument, role in zip(entry.args, argument_roles(entry), strict=True):
        type_ = local_type(argument.type, meshes(module))
        assert isinstance(type_, TensorType)
        size = bytes_per_element(type_.element_type)
        found[role] += int(prod(type_.get_shape()) * size)
    return found


def kind_of(module: ModuleOp) -> KindOp:
    (kind,) = (op for op in module.walk() if isinstance(op, KindOp))
    return kind


def half_precision_mlp(layers: int = 6, width: int = 64) -> ModuleOp:
    """A step in bf16, with f32 copies and two moments: 14 bytes for a parameter."""
    module = build_mlp(layers=layers, d_model=width, batch=8, dtype="bf16")
    DifferentiatePass(loss="mse", optimizer="adamw").apply(Context(), module)
    return module


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"d": 2, "zero": 1}, marks=pytest.mark.slow),
        {"d": 2, "t": 2, "zero": 3, "overlap": True},
        {"p": 2, "k": 2},
    ],
)
def test_a_step_computes_the_same(options: dict[str, Any]) -> None:
    step = training_gpt()
    found = distributed(step, offload_states=True, **options)
    assert sum(is_on_host(arg.type) for arg in entry_function(found).args) == 2 * 28
    assert_same_results(step, found)


def test_flattened_states_are_offloaded_too() -> None:
    step = training_mlp(batch=6)
    found = distributed(step, d=3, zero=1, offload_states=True)
    moved = [arg.type for arg in entry_function(found).args if is_on_host(arg.type)]
    assert {len(shape_of(type_)) for type_ in moved} == {1}
    assert_same_results(step, found)


def test_momentum_is_a_state_too() -> None:
    step = training_mlp(optimizer="sgd", learning_rate=0.1, momentum=0.9, clip=1.0)
    found = distributed(step, d=2, offload_states=True)
    assert sum(is_on_host(arg.type) for arg in entry_function(found).args) == 4
    assert_same_results(step, found)


@pytest.mark.parametrize("d", [1, 2])
def test_a_parameter_keeps_2_of_14_bytes_on_the_device(d: int) -> None:
    """
    Beside its gradient, that is 4 bytes instead of 16; 12 / d are in the host's memory, and
    pass the link twice.
    """
    step = half_precision_mlp()
    parameters = 6 * (64 * 64 + 64)
    options = {"d": d, "zero": 1} if d > 1 else {}
    kept = distributed(step, **options)
    found = distributed(step, offload_states=True, **options)
    moved = 12 * parameters // d
    counter = 8  # of steps
    assert bytes_by_role(kept)["state"] == moved + counter
    assert bytes_by_role(found)["state"] == counter
    assert bytes_by_role(found)["parameter"] == 2 * parameters
    before, after = simulate(kept), simulate(found)
    assert after.host_bytes == [moved] * d and before.host_bytes == [0] * d
    kind = kind_of(found)
    assert kind.host_bandwidth is not None
    copies = 2 * 3 * 12 * kind.launch_latency.value.data
    seconds = copies + 2 * moved / kind.host_bandwidth.value.data
    assert after.step_time_s - before.step_time_s == pytest.approx(seconds, rel=1e-6)


def test_the_peak_holds_the_states_of_a_group() -> None:
    """Updates write over what was fetched, so that a group's states are there once."""
    step = half_precision_mlp(layers=12)
    parameters = 64 * 64 + 64
    held: dict[int, int] = {}
    for layers in (1, 2, 4):
        module = distributed(step)
        assert offload_states(module, layers * 12 * parameters)
        assert_same_results(step, module) if layers == 2 else None
        (held[layers],) = simulate(module).peak_memory_bytes
    for few, many in pairwise(held):
        assert held[many] - held[few] == (many - few) * 12 * parameters
    (everything,) = simulate(distributed(step)).peak_memory_bytes
    # With all states there, the peak is at the loss, where an activation more is alive.
    activation = 8 * 64 * 2
    assert 0 <= everything - held[1] - 11 * 12 * parameters <= activation


def test_the_host_may_be_too_small() -> None:
    found = distributed(half_precision_mlp(), offload_states=True)
    needed = 12 * 6 * (64 * 64 + 64)
    kind = kind_of(found)
    kind.properties["host_memory"] = IntegerAttr(needed, 64)
    assert simulate(found).fits
    kind.properties["host_memory"] = IntegerAttr(needed - 1, 64)
    simulation = simulate(found)
    assert simulation.hosts_too_small == [0] and not simulation.too_small
    assert not simulation.fits


def test_without_states_it_is_refused() -> None:
    step = training_mlp(optimizer="sgd", learning_rate=0.1)
    with pytest.raises(DistIRError, match="keeps no states of an optimizer"):
        distributed(step, offload_states=True)
    with pytest.raises(DistIRError, match=r"offloading .* needs a training step"):
        distributed(build_mlp(layers=1, d_model=8, batch=2), offload_states=True)


def test_the_package_holds_as_much_less(tmp_path: Path, spawner: Spawner) -> None:
    """The states of one layer, of 12, are on the device at a time."""
    step, layer = half_precision_mlp(layers=12), 12 * (64 * 64 + 64)
    peaks: list[int] = []
    for name in ("kept", "moved"):
        found = distributed(step)
        if name == "moved":
            assert offload_states(found, layer)
        (memory,) = count_memory(write_package(found, tmp_path / name), spawner=spawner)
        peaks.append(memory.peak)
    assert peaks[0] - peaks[1] >= 0.99 * 11 * layer


def test_plans_for_eager_pytorch_say_that_it_is_left_out() -> None:
    step = training_gpt()
    told = "Offloading to the host's memory is left out"
    for offloads in (False, True):
        found = distributed(step, d=2, zero=1, offload_states=offloads)
        remarks = eager_plan(found, "the plan").remarks
        assert any(told in remark for remark in remarks) == offloads


@pytest.mark.parametrize("options", sampled([{"d": 2, "zero": 1}, {"p": 2, "k": 2}], 2))
def test_a_training_goes_on_without_offloading(
    tmp_path: Path, spawner: Spawner, options: dict[str, Any]
) -> None:
    """Its checkpoints and its results are those of a training on the device alone."""
    step = training_mlp()
    given = batches(step)
    plain = write_package(distributed(step, **options), tmp_path / "plain")
    moved = write_package(
        distributed(step, offload_states=True, **options), tmp_path / "moved"
    )
    wanted = run_package(
        plain, inputs=given, spawner=spawner, training=Training(steps=4)
    )
    training = Training(steps=2, checkpoints=tmp_path / "checkpoints")
    run_package(moved, inputs=given, spawner=spawner, training=training)
    training = replace(training, steps=4, resume="latest")
    again = run_package(moved, inputs=given, spawner=spawner, training=training)
    resumed = tmp_path / "checkpoints" / "step-4"
    assert resumed.exists()
    for name, value in wanted.items():
        last = value[2:] if name == "loss" else value
        np.testing.assert_allclose(again[name], last, rtol=1e-6, atol=1e-7)
