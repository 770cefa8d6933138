"""The commands in the order that a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.command_line import failure, succeed

from distir.program.weights import load_weights

BATCH, INNER, OUTER = 8, 16, 32


@pytest.fixture(scope="module")
def onnx_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer perceptron with a dynamic batch."""
    generator = np.random.default_rng(0)
    weights = {
        "up.weight": generator.standard_normal((INNER, OUTER), np.float32),
        "up.bias": generator.standard_normal(OUTER, np.float32),
        "down.weight": generator.standard_normal((OUTER, INNER), np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "up.weight", "up.bias"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "down.weight"], ["y"]),
    ]
    shape = ["batch", INNER]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = tmp_path_factory.mktemp("onnx") / "mlp.onnx"
    onnx.save(helper.make_model(graph), path)
    return path


@pytest.fixture(scope="module")
def model(onnx_model: Path) -> Path:
    """The imported program; its weights lie beside it."""
    path = onnx_model.with_name("model.mlir")
    succeed("import", onnx_model, "--dim", f"batch={BATCH}", "-o", path)
    return path


@pytest.fixture(scope="module")
def distributed(model: Path) -> Path:
    path = model.with_name("dist.mlir")
    command = ("distribute", model, "--cluster", "dgx2", "-d", "2", "-t", "2")
    succeed(*command, "--shard", "up.weight:1=t", "-o", path)
    return path


def test_import_writes_the_weights_beside_the_program(onnx_model: Path, model: Path):
    weights = load_weights(model.with_suffix(".safetensors"))
    (source,) = (
        numpy_helper.to_array(t)
        for t in onnx.load(onnx_model).graph.initializer
        if t.name == "up.weight"
    )
    np.testing.assert_array_equal(weights["up.weight"], source)
    assert 'dist.weights = "model.safetensors"' in model.read_text()


def test_a_sequential_program_is_distributed_and_simulated_without_a_file_between(
    model: Path, distributed: Path, tmp_path: Path
):
    direct, through_file = tmp_path / "direct.json", tmp_path / "file.json"
    options = ("--cluster", "dgx2", "-d", "2", "-t", "2", "--shard", "up.weight:1=t")
    succeed("simulate", model, *options, "--json", direct)
    succeed("simulate", distributed, "--json", through_file)
    assert json.loads(direct.read_text()) == json.loads(through_file.read_text())


def test_a_distribution_without_a_cluster(model: Path):
    message = failure("simulate", model, "-d", "2", "--zero", "1")
    assert "-d and --zero" in message and "--cluster" in message


def test_simulating_a_distributed_program_under_another_distribution(distributed: Path):
    message = failure("simulate", distributed, "--cluster", "dgx2", "-d", "4")
    assert "distributed already" in message


def test_a_comparison_takes_no_cluster(distributed: Path):
    files = ("--diff", distributed, distributed)
    assert "--diff" in failure("simulate", *files, "--cluster", "dgx2")


def test_unresolved_dimension(onnx_model: Path, tmp_path: Path):
    message = failure("import", onnx_model, "-o", tmp_path / "model.mlir")
    assert "(batch)" in message and "--dim batch=SIZE" in message


def test_unknown_dimension(onnx_model: Path, tmp_path: Path):
    output = tmp_path / "model.mlir"
    message = failure("import", onnx_model, "--dim", "bach=8", "-o", output)
    assert "'bach'" in message
    assert not output.exists()


def test_truncated_model(onnx_model: Path, tmp_path: Path):
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_model.read_bytes()[:-100])
    assert "model.onnx" in failure("import", path, "-o", tmp_path / "model.mlir")


def test_check(model: Path, distributed: Path):
    done = succeed("check", model, distributed, "--seed", "3")
    (row,) = (line for line in done.output.splitlines() if line.startswith("y "))
    assert row.split()[-1] == "equal"


def test_check_with_tolerance_zero(model: Path, distributed: Path):
    succeed("check", model, model, "--tolerance", "0")


def test_check_with_inputs(model: Path, distributed: Path, tmp_path: Path):
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.full((BATCH, INNER), np.nan, np.float32))
    # A NaN equals a NaN.
    succeed("check", model, distributed, "--inputs", inputs)


def test_simulate(distributed: Path, tmp_path: Path):
    report, trace = tmp_path / "out.json", tmp_path / "trace.json"
    done = succeed("simulate", distributed, "--json", report, "--trace", trace)
    assert "step time" in done.output
    result = json.loads(report.read_text())
    assert result["step_time_s"] > 0
    assert result["throughput_samples_per_s"] == pytest.approx(
        BATCH / result["step_time_s"]
    )
    assert len(result["peak_memory_bytes"]) == len(result["communication_bytes"]) == 4
    assert result["ops"] >= 4
    events = json.loads(trace.read_text())["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1, 2, 3}


def test_the_profile_of_the_cluster_is_used_unless_told_otherwise(
    model: Path, distributed: Path, tmp_path: Path
):
    options = ("simulate", distributed, "--json", tmp_path / "out.json")
    times: dict[str, float] = {}
    for given in ((), ("--profile", "V100"), ("--profile", "none")):
        done = succeed(*options, *given)
        result = json.loads((tmp_path / "out.json").read_text())
        assert result["profiles"] == ([] if "none" in given else ["V100"])
        words = "as data sheets say" if "none" in given else "with the profile V100"
        assert words in done.output
        times[" ".join(given)] = result["step_time_s"]
    assert times[""] == times["--profile V100"] > times["--profile none"]
    alone = succeed("simulate", model, "--cluster", "cpu", "-d", "2")
    assert "@core of @cpu names no profile" in alone.errors
    assert "as data sheets say" in alone.output


def test_simulate_reports(distributed: Path, tmp_path: Path):
    page, data = tmp_path / "report.html", tmp_path / "out.json"
    done = succeed("simulate", distributed, "--html", page, "--memory", "--json", data)
    assert "MFU" in done.output and "bubble" in done.output
    assert "memory at the peak" in done.output and "parameters" in done.output
    result = json.loads(data.read_text())
    assert sum(group["peak_bytes"] for group in result["memory"]) == max(
        result["peak_memory_bytes"]
    )
    assert "</html>" in page.read_text()


def test_simulate_diff(model: Path, distributed: Path, tmp_path: Path):
    other, data = tmp_path / "other.mlir", tmp_path / "diff.json"
    succeed("distribute", model, "--cluster", "dgx2", "-d", "4", "-o", other)
    done = succeed("simulate", "--diff", distributed, other, "--json", data)
    assert "other.mlir against dist.mlir" in done.output
    result = json.loads(data.read_text())
    parts = ("compute_fs", "exposed_communication_fs", "waiting_fs")
    assert sum(result[part] for part in parts) == result["step_fs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give one program"),
        (["a.mlir", "--diff", "a.mlir", "b.mlir"], "give one program"),
        (["--diff", "a.mlir", "b.mlir", "--html", "c.html"], "one by one"),
        (["--diff", "a.mlir", "b.mlir"], "a.mlir: No such file"),
    ],
)
def test_simulate_refuses(arguments: list[str], words: str):
    assert words in failure("simulate", *arguments)


def test_weights_stay_reachable_from_another_folder(model: Path, tmp_path: Path):
    output = tmp_path / "other.mlir"
    done = succeed("distribute", model, "--cluster", "cpu", "-d", "2", "-o", output)
    weights = output.with_suffix(".safetensors")
    assert str(weights) in done.errors
    assert 'dist.weights = "other.safetensors"' in output.read_text()
    np.testing.assert_array_equal(
        load_weights(weights)["up.weight"],
        load_weights(model.with_suffix(".safetensors"))["up.weight"],
    )
    # Again, over the files that are there now.
    succeed("distribute", model, "--cluster", "cpu", "-d", "4", "-o", output)


def test_clusters_grow(model: Path, tmp_path: Path):
    output = tmp_path / "dist.mlir"
    command = ("distribute", model, "--cluster", "dgx-h100", "--devices", "16")
    succeed(*command, "-d", "8", "-t", "2", "-o", output)
    assert "[0 to 16]" in output.read_text()


def test_lower_and_start_with_torchrun(distributed: Path, tmp_path: Path):
    package = tmp_path / "package"
    succeed("lower", distributed, "-o", package)
    torchrun = Path(sys.executable).with_name("torchrun")
    done = subprocess.run(
        [torchrun, "--nproc-per-node", "4", package / "main.py", "--help"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("shared_ranks")
def test_run(onnx_model: Path, distributed: Path, tmp_path: Path):
    inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
    x = np.random.default_rng(1).standard_normal((BATCH, INNER), np.float32)
    np.savez(inputs, x=x)
    command = ("run", distributed, "--backend", "gloo")
    done = succeed(*command, "--inputs", inputs, "--outputs", outputs)
    assert any(line.startswith("y ") for line in done.output.splitlines())
    w = {
        t.name: numpy_helper.to_array(t)
        for t in onnx.load(onnx_model).graph.initializer
    }
    expected = np.maximum(x @ w["up.weight"] + w["up.bias"], 0) @ w["down.weight"]
    with np.load(outputs) as archive:
        np.testing.assert_allclose(archive["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("shared_ranks")
def test_run_that_takes_too_long(distributed: Path):
    command = ("run", distributed, "--backend", "gloo")
    assert "seconds" in failure(*command, "--timeout", "0.001")
