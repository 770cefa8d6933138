"""What `run_package` does when something goes wrong: one paragraph, nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support.programs import parse
from support.thoroughness import chosen

from distir.errors import DistIRError
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package

PROGRAM = """
device.mesh @mesh on @box <t = 2> [0 to 2]
func.func @main(%x: tensor<4x2xf32, #dist.layout<@mesh, [{t}, {}]>> {dist.name = "x"}, %w: tensor<2xf32, #dist.layout<@mesh>> {dist.name = "w", dist.role = "parameter"}) -> (tensor<4x2xf32, #dist.layout<@mesh>> {dist.name = "y"}) {
  %a = onnx.Add(%x, %w) : (tensor<4x2xf32, #dist.layout<@mesh, [{t}, {}]>>, tensor<2xf32, #dist.layout<@mesh>>) -> tensor<4x2xf32, #dist.layout<@mesh, [{t}, {}]>>
  %y = collective.all_gather %a over [t] : tensor<4x2xf32, #dist.layout<@mesh, [{t}, {}]>> -> tensor<4x2xf32, #dist.layout<@mesh>>
  func.return %y : tensor<4x2xf32, #dist.layout<@mesh>>
}
"""
X = np.arange(8, dtype=np.float32).reshape(4, 2)
W = np.ones(2, np.float32)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_package(parse(PROGRAM), tmp_path / "package")


def sabotage(package: Path, line: str) -> None:
    """Makes rank 1 do something before it communicates."""
    path = package / "program.py"
    text = path.read_text()
    at = text.index("        a = ")
    indented = textwrap.indent(
        f"import os, signal, sys, time\nif os.environ['RANK'] == '1':\n    {line}\n",
        " " * 8,
    )
    path.write_text(text[:at] + indented + text[at:])


def test_runs(package: Path, spawner: Spawner) -> None:
    lines: list[str] = []
    results = run_package(
        package, 2, inputs={"x": X, "w": W}, progress=lines.append, spawner=spawner
    )
    np.testing.assert_array_equal(results["y"], X + 1)
    assert lines == ["loading arguments", "running", "gathering results"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by signal SIGKILL"),
        ("sys.exit(3)", "rank 1 failed with exit code 3"),
        (
            "raise RuntimeError('out of luck')",
            "rank 1 failed with exit code 1.*out of luck",
        ),
        ("time.sleep(1000)", "did not finish within 1 seconds"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "did not finish within 1 seconds"),
    ],
    ids=["killed", "exit", "raise", "hang", "stop"],
)
def test_a_rank_that_fails(
    package: Path, line: str, message: str, spawner: Spawner
) -> None:
    sabotage(package, line)
    process = spawner.start()
    start = time.monotonic()
    # Long enough for ranks that fail by themselves, which nothing waits for.
    timeout_s = 1 if "finish within" in message else 30
    with pytest.raises(DistIRError, match=message) as caught:
        run_package(
            package, inputs={"x": X, "w": W}, timeout_s=timeout_s, spawner=spawner
        )
    assert time.monotonic() - start < 20
    assert "\n" not in str(caught.value)
    assert spawner.start() is process, "ranks that fail cost no new start"
    assert children(process.pid) == []


def children(process: int) -> list[int]:
    """The processes that a process started and that it has not seen end."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in text.split()]


def test_an_error_is_told_with_its_place_and_without_the_rest_of_its_traceback(
    package: Path, spawner: Spawner
) -> None:
    sabotage(package, "print(len([]) + [][1])")
    with pytest.raises(DistIRError) as caught:
        run_package(package, inputs={"x": X, "w": W}, timeout_s=30, spawner=spawner)
    message = str(caught.value)
    assert re.search(
        r'IndexError: list index out of range \(File ".*", line \d+', message
    )
    assert "Traceback" not in message and "^^" not in message


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_spawner_serves_again_after_a_failure(
    package: Path, tmp_path: Path, end: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whatever became of its process: a new one is started if the old one does not answer.
    Neither uses modules of the folder that it is started in.
    """
    for name in ("torch", "json", "runtime", "tensors", "random"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    hung = write_package(parse(PROGRAM), tmp_path / "hung")
    sabotage(hung, f"os.kill(os.getppid(), {int(end)}); time.sleep(1000)")
    with Spawner() as own:
        first = own.start()
        with pytest.raises(DistIRError):
            run_package(hung, inputs={"x": X, "w": W}, timeout_s=1, spawner=own)
        wait_for_the_end_of(first.pid)
        results = run_package(package, inputs={"x": X, "w": W}, spawner=own)
    np.testing.assert_array_equal(results["y"], X + 1)


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        # Caught, it ends the caller in good order.
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        # Nobody catches it, so that it ends the caller as SIGKILL does.
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_nothing_outlives_the_caller(package: Path, how: signal.Signals) -> None:
    sabotage(package, "time.sleep(1000)")
    code = textwrap.dedent(
        f"""
        import signal
        import numpy as np
        from distir.launch.packages import run_package
        # A shell that runs the tests in the background has interrupts ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        x = np.zeros((4, 2), np.float32)
        run_package({str(package)!r}, inputs={{"x": x, "w": x[0]}}, progress=print)
        """
    )
    caller = subprocess.Popen(
        [sys.executable, "-uc", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert caller.stdout is not None
    for line in caller.stdout:
        if line == "running\n":
            break
    (server,) = children(caller.pid)
    caller.send_signal(how)
    caller.wait()
    caller.stdout.close()
    wait_for_the_end_of(server)


def wait_for_the_end_of(group: int) -> None:
    """Waits a while until nobody is left in a group of processes."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("processes are left")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": X}, "no value for parameter 'w'"),
        ({"x": X.T.copy(), "w": W}, r"input 'x' has shape \(2, 4\), expected \(4, 2\)"),
        ({"x": X.astype(np.float64), "w": W}, "input 'x' has type torch.float64"),
    ],
    ids=["missing", "shape", "type"],
)
def test_wrong_arguments(
    package: Path, spawner: Spawner, inputs: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(DistIRError, match=message):
        run_package(package, inputs=inputs, spawner=spawner, timeout_s=30)


def test_wrong_number_of_ranks(package: Path) -> None:
    with pytest.raises(DistIRError, match="is for 2 ranks and cannot run on 4"):
        run_package(package, 4, inputs={"x": X, "w": W})


def test_no_package(tmp_path: Path) -> None:
    with pytest.raises(DistIRError, match="distir lower"):
        run_package(tmp_path)


def test_nccl_needs_gpus(package: Path, spawner: Spawner) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() >= 2:
        pytest.skip("there are enough GPUs")
    with pytest.raises(DistIRError, match="nccl needs one GPU per process"):
        run_package(package, backend="nccl", inputs={"x": X, "w": W}, spawner=spawner)


DAMAGES = {
    "truncated": r"w\.safetensors is truncated: 'w' ends at byte \d+ of \d+$",
    "garbage": r"w\.safetensors is truncated or not a safetensors file$",
    "absent": r"w\.safetensors",
}


@pytest.mark.parametrize(
    ("damage", "is_folder"),
    chosen(
        product(DAMAGES, (False, True)),
        [("truncated", True), ("garbage", False), ("absent", True)],
    ),
)
def test_bad_weights(
    package: Path,
    tmp_path: Path,
    damage: str,
    is_folder: bool,
    spawner: Spawner,
) -> None:
    from safetensors.numpy import save_file

    message = DAMAGES[damage]
    path = tmp_path / "weights" / "w.safetensors"
    path.parent.mkdir()
    save_file({"w": W}, path)
    given = path
    if is_folder:
        given = path.parent
        save_file({"other": W}, given / "other.safetensors")
        message = message if damage != "absent" else "has none of the program's tensors"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-4])
    elif damage == "garbage":
        path.write_bytes(b"\xff" * 40)
    else:
        path.unlink()
    with pytest.raises(DistIRError, match=message) as error:
        run_package(package, inputs={"x": X}, weights=given, spawner=spawner)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_torchrun(package: Path, tmp_path: Path) -> None:
    """The package as a user starts it, from a folder with an awkward name."""
    from safetensors.numpy import load_file, save_file

    moved = package.rename(tmp_path / "a b-1")
    save_file({"x": X, "w": W}, tmp_path / "in.safetensors")
    outputs = tmp_path / "out.safetensors"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "2", str(moved / "main.py")),
        *("--inputs", str(tmp_path / "in.safetensors"), "--outputs", str(outputs)),
    ]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    np.testing.assert_array_equal(load_file(outputs)["y"], X + 1)


def test_results_of_one_name(tmp_path: Path, spawner: Spawner) -> None:
    module = parse(
        """func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32> {dist.name = "y"}, tensor<2xf32> {dist.name = "y"}) {
          %z = onnx.Neg(%x) : (tensor<2xf32>) -> tensor<2xf32>
          func.return %x, %z : tensor<2xf32>, tensor<2xf32>
        }"""
    )
    write_package(module, tmp_path)
    results = run_package(tmp_path, inputs={"x": W}, spawner=spawner)
    np.testing.assert_array_equal(results["y"], W)
    np.testing.assert_array_equal(results["y_2"], -W)


def test_weights_of_the_manifest(tmp_path: Path, spawner: Spawner) -> None:
    from safetensors.numpy import save_file

    save_file({"w": W}, tmp_path / "w.safetensors")
    package = write_package(parse(PROGRAM), tmp_path / "p", tmp_path / "w.safetensors")
    results = run_package(package, inputs={"x": X}, spawner=spawner)
    np.testing.assert_array_equal(results["y"], X + 1)
