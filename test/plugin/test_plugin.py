"""
A package with its own dialect, `toy`, is distributed, checked, simulated, lowered and
run without a line about it in DistIR.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.command_line import failure, succeed, write_program

PLUGINS = Path(__file__).parent

PROGRAM = """
func.func @main(
    %x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<32x16xf32> {dist.role = "parameter", dist.name = "w"},
    %v: tensor<32x16xf32> {dist.role = "parameter", dist.name = "v"}
) -> (tensor<8x16xf32> {dist.name = "y"}) {
  %h = toy.similarity %x, %w : (tensor<8x16xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
  %a = onnx.Relu(%h) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %y = onnx.MatMul(%a, %v) : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
"""
SPLITS = ("--shard", "w:0=t", "--shard", "v:0=t")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as pip would install it: its metadata in a folder of the path."""
    project = tomllib.loads((PLUGINS / "toy" / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / f"{project['name']}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines: list[str] = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {at}" for name, at in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    for folder in (tmp_path, PLUGINS):
        monkeypatch.syspath_prepend(folder)
    return tmp_path


@pytest.fixture
def distributed(installed: Path) -> Path:
    """The program on 2 x 2 devices."""
    model = write_program(installed / "model.mlir", PROGRAM)
    output = installed / "dist.mlir"
    succeed(
        *("distribute", model, "--cluster", "cpu"),
        *("-d", "2", "-t", "2", *SPLITS, "-o", output),
    )
    return output


def save_model(path: Path, operator: str, **attributes: int) -> None:
    """Writes a model with an operator of the domain of the package."""
    weight = np.ones((32, 16), np.float32)
    names = ["x", "w"]
    node = helper.make_node(
        operator, names, ["h"], name="similar", domain="org.toy", **attributes
    )
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 32])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("org.toy", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def test_the_rule_decides_the_layouts(distributed: Path):
    text = distributed.read_text()
    assert "!f32_8d_16 = tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>" in text
    assert "toy.similarity %x, %w : (!f32_8d_16, " in text
    assert "tensor<8x32xf32, #dist.layout<@mesh, [{d}, {t}]>>" in text
    assert text.count("collective.all_reduce") == 1


def test_the_interpreter_runs_it(distributed: Path):
    succeed("check", distributed.with_name("model.mlir"), distributed)


def test_its_cost_is_simulated(distributed: Path):
    report = distributed.with_name("report.json")
    succeed("simulate", distributed, "--json", report)
    seconds = 2 * 8 * 16 * 32 / 4
    assert json.loads(report.read_text())["step_time_s"] == pytest.approx(
        seconds, rel=1e-3
    )


@pytest.mark.usefixtures("shared_ranks")
def test_it_runs_on_processes(distributed: Path):
    inputs, outputs = distributed.with_name("in.npz"), distributed.with_name("out.npz")
    generator = np.random.default_rng(0)
    x = generator.standard_normal((8, 16), np.float32)
    w, v = generator.standard_normal((2, 32, 16), np.float32)
    np.savez(inputs, x=x, w=w, v=v)
    command = ("run", distributed, "--backend", "gloo")
    succeed(*command, "--inputs", inputs, "--outputs", outputs)
    with np.load(outputs) as results:
        expected = np.maximum(x @ w.T, 0) @ v
        np.testing.assert_allclose(results["y"], expected, rtol=1e-4, atol=1e-4)


def test_its_operator_of_onnx_is_imported(installed: Path):
    model = installed / "model.onnx"
    save_model(model, "Similarity")
    program, dist = model.with_suffix(".mlir"), model.with_name("dist.mlir")
    succeed("import", model, "-o", program)
    assert "toy.similarity" in program.read_text()
    distribute = ("distribute", program, "--cluster", "cpu", "-d", "2", "-t", "2")
    succeed(*distribute, "--shard", "w:0=t", "-o", dist)
    succeed("check", program, dist)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("operator", "attributes", "reason"),
    [
        ("Difference", {}, "not an operator of the ONNX standard"),
        ("Similarity", {"alpha": 1}, "it takes two matrices and no attributes"),
    ],
)
def test_operators_that_the_package_does_not_read(
    tmp_path: Path, operator: str, attributes: dict[str, int], reason: str
):
    model = tmp_path / "model.onnx"
    save_model(model, operator, **attributes)
    message = failure("import", model, "-o", tmp_path / "model.mlir")
    assert f"{operator} 'similar' (domain org.toy)" in message
    assert reason in message


def test_the_documentation_quotes_the_package():
    text = (PLUGINS.parents[1] / "docs" / "extending.md").read_text()
    package = "".join(path.read_text() for path in (PLUGINS / "toy").glob("*.*"))
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", text, re.S)
    assert len(blocks) == 9
    for block in blocks:
        assert block in package


JOINED = """
func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}) -> (tensor<8x32xf32> {dist.name = "y"}) {
  %y = "tensor.concat"(%x, %x) <{dim = 1 : i64}> : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x32xf32>
  func.return %y : tensor<8x32xf32>
}
"""


def test_a_rule_for_an_op_of_another_dialect(installed: Path):
    """In a process of its own, as a dialect's modules are imported once."""
    model = write_program(installed / "model.mlir", JOINED)
    path = os.pathsep.join([str(installed), str(PLUGINS), *sys.path])
    passes = ["-p", "distribute{d=2 cluster=cpu}"]
    done = subprocess.run(
        [sys.executable, "-m", "distir.tools.distir_opt", model, *passes],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tensor.concat" in done.stdout and "all_gather" not in done.stdout
    assert "no sharding rule" not in done.stderr


def test_plain_xdsl_opt_distributes_it(installed: Path):
    model = write_program(installed / "model.mlir", PROGRAM)
    path = os.pathsep.join(
        [str(installed), str(PLUGINS), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [
            Path(sys.executable).with_name("xdsl-opt"),
            model,
            "-p",
            "distribute{d=2 t=2}",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "toy.similarity" in done.stdout and "@mesh" in done.stdout
