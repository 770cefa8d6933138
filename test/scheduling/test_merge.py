"""Merged linear layers: the same results; weights and checkpoints from before still fit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.command_line import succeed
from support.imported_programs import imported, program
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
from distir.program import argument_names, entry_function, functions
from distir.program.repacking import repacked_arguments
from distir.scheduling import Columns, Schedule

QKV = "encoder.layer.{}.attention.self.qkv"


def merging(pattern: str = "encoder.layer.*") -> Schedule:
    """A schedule that merges the projections of BERT's attention layers."""
    s = Schedule()
    s[f"{pattern}.attention.self"].merge("query", "key", "value", name="qkv")
    return s


@cache
def merged() -> ModuleOp:
    """BERT with merged projections, whose layers are one function."""
    s = merging()
    s[QKV.format("*")].split(Columns("t"))
    return scheduled(program("bert", True), s)


def assert_same(module: ModuleOp, other: ModuleOp) -> None:
    """Both compute the same of random values, those of merged parameters by their parts."""
    wanted = run_program(module, random_arguments(module, 3))
    found = run_program(other, random_arguments(other, 3))
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outlined", sampled([True, False], 2))
def test_merged_projections_compute_the_same(outlined: bool) -> None:
    module = program("bert", outlined)
    found = scheduled(module, merging())
    names = argument_names(entry_function(found))
    assert f"{QKV.format(1)}.weight" in names and f"{QKV.format(1)}.bias" in names
    assert not [name for name in names if "query" in name or "key" in name]
    packed = repacked_arguments(entry_function(found))[f"{QKV.format(0)}.weight"]
    assert packed.names[1] == "encoder.layer.0.attention.self.key.weight"
    assert (packed.dim, packed.sizes) == (0, (32, 32, 32))
    assert str(found).count("onnx.Split(") == (1 if outlined else 2)
    assert functions(found).keys() == functions(module).keys()
    assert_same(module, found)


def test_one_layer_alone_gets_a_function_of_its_own() -> None:
    module = program("bert", True)
    found = scheduled(module, merging("encoder.layer.1"))
    assert len(functions(found)) == len(functions(module)) + 1
    names = argument_names(entry_function(found))
    assert f"{QKV.format(1)}.weight" in names
    assert "encoder.layer.0.attention.self.query.weight" in names
    assert_same(module, found)


@pytest.mark.parametrize(
    ("options", "split"),
    sampled(
        [({"d": 2, "t": 2}, "{t:16}"), ({"t": 2}, "{t:16}"), ({"t": 4}, "{t:8}")], 3
    ),
)
def test_each_device_has_its_columns_of_every_part(
    options: dict[str, int], split: str
) -> None:
    found = distributed(merged(), **options)
    assert splits(found)[f"{QKV.format(0)}.weight"] == f", [{split}, {{}}]"
    assert splits(found)[f"{QKV.format(0)}.bias"] == f", [{split}]"
    assert "all_to_all" not in str(found)
    assert_same(program("bert", True), found)


def test_weights_from_before_load(tmp_path: Path) -> None:
    """The file of weights stays as it is: `check` and `lower` make the merged ones of it."""
    before, after, dist = (tmp_path / f"{n}.mlir" for n in ("before", "after", "dist"))
    bert = imported("bert")
    # Saving says in the program where its weights are.
    replace(bert, module=bert.module.clone()).save(before)
    script = tmp_path / "s.py"
    script.write_text(
        "def schedule(s):\n    s['encoder.layer.*.attention.self'].merge("
        "'query', 'key', 'value', name='qkv')\n"
    )
    succeed("schedule", before, script, "-o", after)
    succeed("distribute", after, "--cluster", "cpu", "-t", "2", "-o", dist)
    for pair in ((before, after), (before, dist), (dist, before)):
        assert "DIFFERS" not in succeed("check", *pair).output


@pytest.fixture(scope="module")
def steps() -> tuple[ModuleOp, ModuleOp]:
    """A training step of BERT, and one of BERT with merged projections."""
    before, after = program("bert", True).clone(), merged().clone()
    for module in (before, after):
        DifferentiatePass(loss="mse", optimizer="adam", learning_rate=1e-3).apply(
            Context(), module
        )
    return before, after


@pytest.mark.slow  # test_merge_groups has the same way with parts of groups
def test_a_checkpoint_from_before_loads(
    steps: tuple[ModuleOp, ModuleOp], tmp_path: Path, spawner: Spawner
) -> None:
    before, after = steps
    inputs, checkpoints = batches(before), tmp_path / "checkpoints"
    old = package(before, tmp_path / "old", d=2)
    new = package(after, tmp_path / "new", t=2)
    expected = run_package(old, inputs=inputs, spawner=spawner, training=Training(3))
    saving = Training(1, checkpoints=checkpoints)
    run_package(old, inputs=inputs, spawner=spawner, training=saving)
    resumed = Training(3, checkpoints=checkpoints, resume="latest")
    again = run_package(new, inputs=inputs, spawner=spawner, training=resumed)
    fresh = run_package(new, inputs=inputs, spawner=spawner, training=Training(3))
    packed = repacked_arguments(entry_function(after))
    for found in (again, fresh):
        for name, array in found.items():
            if name == "loss":
                np.testing.assert_allclose(array, expected[name][-len(array) :], 1e-4)
            else:
                parts = packed[name].split(array) if name in packed else {name: array}
                for part, value in parts.items():
                    np.testing.assert_allclose(
                        value, expected[part], rtol=1e-3, atol=1e-4, err_msg=part
                    )


def test_check_compares_steps_by_the_parts(
    steps: tuple[ModuleOp, ModuleOp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # names in one line
    paths = tmp_path / "before.mlir", tmp_path / "after.mlir"
    for path, module in zip(paths, steps, strict=True):
        path.write_text(str(module))
    output = succeed("check", *paths).output
    assert "DIFFERS" not in output
    assert "encoder.layer.*.attention.self.value.weight (2) " in output
    succeed("check", *reversed(paths))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (("query", "kei"), "there is no module '.*self.kei'; there are .*self.key"),
        (("query", "dropout"), "there is no module"),
    ],
)
def test_what_cannot_be_merged(layers: tuple[str, ...], message: str) -> None:
    s = Schedule()
    s["encoder.layer.*.attention.self"].merge(*layers, name="qkv")
    with pytest.raises(DistIRError, match=r"test_merge.py, line \d+: " + message):
        scheduled(program("bert", True), s)


def test_other_layers_cannot_be_merged() -> None:
    for layers, message in (
        (("attention.self.query", "output.dense"), "do not read the same value"),
        (("attention.self", "output.dense"), "'.*' has 3 matrix products"),
    ):
        s = Schedule()
        s["encoder.layer.*"].merge(*layers, name="all")
        with pytest.raises(DistIRError, match=message):
            scheduled(program("bert", True), s)


def test_handles_of_what_was_merged_are_consumed() -> None:
    s = Schedule()
    attention = s["encoder.layer.*.attention.self"]
    query = attention["query"]
    bias = query.param("bias")
    attention.merge("query", "key", "value", name="qkv")
    bias.split(0, "t")
    message = (
        r"test_merge.py, line \d+: 'encoder.layer.0.attention.self.query.bias' is not in "
        r"the program any more: test_merge.py, line \d+ consumed it"
    )
    with pytest.raises(DistIRError, match=message):
        scheduled(program("bert", True), s)
    s = Schedule()
    attention = s["encoder.layer.*.attention.self"]
    attention["query"].split(Columns("t"))
    attention.merge("query", "key", "value", name="qkv")
    with pytest.raises(DistIRError, match="merge first"):
        scheduled(program("bert", True), s)
