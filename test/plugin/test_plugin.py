"""
Ops of other packages are distributed, checked, simulated, lowered and run without a line
about them in DistIR: those of a dialect of its own (`toy`), and those of a dialect that
belongs to neither (`tosa_support`).
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
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
    """The packages as pip would install them: their metadata in a folder of the path."""
    for package in ("toy", "tosa_support"):
        project = tomllib.loads((PLUGINS / package / "pyproject.toml").read_text())[
            "project"
        ]
        name, version = project["name"], project["version"]
        metadata = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
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


def blocks_of_the_page(*languages: str) -> list[str]:
    text = (PLUGINS.parents[1] / "docs" / "extending.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    return [block for language, block in blocks if language in languages]


def test_the_documentation_quotes_the_packages():
    packages = [path for path in PLUGINS.glob("*/*.*") if path.suffix != ".pyc"]
    text = "".join(path.read_text() for path in packages)
    quoted = blocks_of_the_page("python", "toml")
    assert len(quoted) == 17
    checks = [block for block in quoted if "check_op" in block]
    assert len(checks) == 1
    for block in quoted:
        assert block in checks or block in text, block


def test_the_packages_use_public_names_only():
    """Those that test_public_names.py holds against the documentation."""
    files = [path for path in PLUGINS.glob("*/*.py")] + [PLUGINS / "check_ops.py"]
    assert len(files) == 4
    used: dict[str, set[str]] = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(n.name.startswith("distir") for n in node.names)
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if module.partition(".")[0] == "distir":
                    names = {alias.name for alias in node.names}
                    used.setdefault(module, set()).update(names)
    assert used.keys() == {"distir.extension", "distir.rules", "distir.testing"}
    for module, names in used.items():
        assert names <= set(import_module(module).__all__)


def in_a_process(installed: Path, *command: str | Path) -> str:
    """The output of a Python module or script that has the packages installed."""
    path = os.pathsep.join([str(installed), str(PLUGINS), *sys.path])
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_op_is_checked(installed: Path):
    """In a process of its own, in which the ops are known for good."""
    *checked, wrong = in_a_process(installed, PLUGINS / "check_ops.py").splitlines()
    names = [line.partition(":")[0] for line in checked]
    assert len(set(names)) == 10 and {"toy.split_heads", "tosa.concat"} <= set(names)
    assert all(" agree with the reference" in line for line in checked)
    report, message = blocks_of_the_page("")
    assert report == f"{checked[0]}\n"
    assert message == f"{wrong}\n"


PRODUCTS = """
func.func @main(
    %x: tensor<1x8x16xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<1x16x32xf32> {dist.role = "parameter", dist.name = "w"},
    %v: tensor<1x32x16xf32> {dist.role = "parameter", dist.name = "v"}
) -> (tensor<1x8x16xf32> {dist.name = "y"}) {
  %z = "tosa.const"() <{values = dense<0.0> : tensor<1xf32>}> : () -> tensor<1xf32>
  %h = tosa.matmul %x, %w, %z, %z : (tensor<1x8x16xf32>, tensor<1x16x32xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x8x32xf32>
  %s = tosa.sin %h : (tensor<1x8x32xf32>) -> tensor<1x8x32xf32>
  %y = tosa.matmul %s, %v, %z, %z : (tensor<1x8x32xf32>, tensor<1x32x16xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x8x16xf32>
  func.return %y : tensor<1x8x16xf32>
}
"""


def test_a_dialect_of_others_is_distributed(installed: Path):
    model = write_program(installed / "model.mlir", PRODUCTS)
    passes = ("-p", "distribute{t=4 cluster=cpu}")
    text = in_a_process(installed, "-m", "distir.tools.distir_opt", model, *passes)
    assert "no sharding rule" not in text
    assert text.count("collective.all_reduce") == 1 and "all_gather" not in text
    assert (
        "tosa.sin" in text
        and "tensor<1x8x32xf32, #dist.layout<@mesh, [{}, {}, {t}]>>" in text
    )


@pytest.mark.slow
def test_a_dialect_of_others_runs(installed: Path):
    model = write_program(installed / "model.mlir", PRODUCTS)
    dist, report = installed / "dist.mlir", installed / "report.json"
    command = ("-m", "distir.tools.cli")
    degrees = ("--cluster", "cpu", "-t", "2")
    in_a_process(installed, *command, "distribute", model, *degrees, "-o", dist)
    in_a_process(installed, *command, "check", model, dist)
    in_a_process(installed, *command, "simulate", dist, "--json", report)
    assert json.loads(report.read_text())["step_time_s"] > 0
    inputs, outputs = installed / "in.npz", installed / "out.npz"
    generator = np.random.default_rng(0)
    shapes = {"x": (1, 8, 16), "w": (1, 16, 32), "v": (1, 32, 16)}
    given = {n: generator.standard_normal(s, np.float32) for n, s in shapes.items()}
    np.savez(inputs, **given)
    files = ("--inputs", inputs, "--outputs", outputs, "--backend", "gloo")
    in_a_process(installed, *command, "run", dist, *files)
    with np.load(outputs) as results:
        expected = np.sin(given["x"] @ given["w"]) @ given["v"]
        np.testing.assert_allclose(results["y"], expected, rtol=1e-4, atol=1e-4)


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
