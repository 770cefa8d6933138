"""Merged layers of different sizes: the projections of grouped-query attention."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.imported_programs import program
from support.schedules import scheduled, splits
from support.thoroughness import sampled
from support.training_programs import batches, distributed, package
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.launch.packages import Spawner, Training, run_package
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, argument_roles, entry_function
from distir.program.repacking import Repacked, repacked_arguments, repacked_of
from distir.scheduling import Columns, Rows, Schedule

GROUPS = 4
"""The key-value heads of the model; it has 8 heads of queries."""


@cache
def merged(groups: int = GROUPS) -> ModuleOp:
    s = Schedule()
    attention = s["model.layers.*.self_attn"]
    attention.merge("q_proj", "k_proj", "v_proj", name="qkv", groups=groups)
    attention.plan({"qkv": Columns("t"), "o_proj": Rows("t")})
    layers = s["model.layers.*"]
    layers.plan({"mlp.gate_proj": Columns("t"), "mlp.up_proj": Columns("t")})
    layers["mlp.down_proj"].split(Rows("t"))
    s["model.embed_tokens"].param("weight").whole("t")
    layers.expect("t", all_reduce=2)
    return scheduled(program("llama", True), s)


def trained(module: ModuleOp) -> ModuleOp:
    module = module.clone()
    options = {"loss": "cross_entropy", "optimizer": "adam", "learning_rate": 1e-3}
    DifferentiatePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    return module


def test_parts_take_turns_in_groups() -> None:
    q, k = np.arange(24).reshape(8, 3), -np.arange(12).reshape(4, 3)
    packed = Repacked(0, ("q", "k"), (8, 4), 2)
    whole = packed.packed({"q": q, "k": k})
    np.testing.assert_array_equal(whole, np.concatenate([q[:4], k[:2], q[4:], k[2:]]))
    parts = packed.split(whole)
    np.testing.assert_array_equal(parts["q"], q)
    np.testing.assert_array_equal(parts["k"], k)
    assert repacked_of({"dist.repacked": packed.attribute}) == packed


@pytest.mark.parametrize("options", sampled([{"d": 2, "t": 2}, {"t": 2}, {"t": 4}], 3))
def test_each_device_has_its_groups_of_every_layer(options: dict[str, int]) -> None:
    """The heads of a device need nothing of the others: one all-reduce behind attention."""
    found = distributed(merged(), **options)
    names = repacked_arguments(entry_function(merged()))
    assert {(own.sizes, own.groups) for own in names.values()} == {((64, 32, 32), 4)}
    assert all(splits(found)[name].startswith(", [{t}") for name in names)
    wanted = run_program(
        program("llama", True), random_arguments(program("llama", True), 3)
    )
    results = run_program(found, random_arguments(found, 3))
    for got, expected in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_from_before_loads(tmp_path: Path, spawner: Spawner) -> None:
    before, after = trained(program("llama", True)), trained(merged())
    inputs, checkpoints = dict(batches(before)), tmp_path / "checkpoints"
    names, roles = (
        of(entry_function(before)) for of in (argument_names, argument_roles)
    )
    for name, role, value in zip(
        names, roles, random_arguments(before, 0), strict=True
    ):
        if role == "constant":
            inputs[name] = value
    old = package(before, tmp_path / "old", d=2)
    new = package(after, tmp_path / "new", t=2)
    expected = run_package(old, inputs=inputs, spawner=spawner, training=Training(2))
    saving = Training(1, checkpoints=checkpoints)
    run_package(old, inputs=inputs, spawner=spawner, training=saving)
    resumed = Training(2, checkpoints=checkpoints, resume="latest")
    again = run_package(new, inputs=inputs, spawner=spawner, training=resumed)
    fresh = run_package(new, inputs=inputs, spawner=spawner, training=Training(2))
    packed = repacked_arguments(entry_function(after))
    for found in (again, fresh):
        for name, array in found.items():
            if name == "loss":
                np.testing.assert_allclose(array, expected[name][-len(array) :], 1e-4)
                continue
            parts = packed[name].split(array) if name in packed else {name: array}
            for part, value in parts.items():
                np.testing.assert_allclose(
                    value, expected[part], rtol=1e-3, atol=1e-4, err_msg=part
                )


def test_groups_that_do_not_divide_a_layer_are_refused() -> None:
    with pytest.raises(
        DistIRError,
        match=r"the 64 outputs of onnx.MatMul .* cannot be cut into 3 groups",
    ):
        merged(3)
