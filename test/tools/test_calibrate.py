"""`distir calibrate`: what a user sees, and the files that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import failure, succeed

import distir
import distir.calibration as calibration
from distir.calibration.fit import LinkFit, OpFit, Residual, Sample
from distir.calibration.machine import PASSING, MeasuredMachine
from distir.errors import DistIRError
from distir.interpreters.simulator.profiles.measured import OpFigures

Logged = Callable[[str], None]


def machine_with(mean: float) -> MeasuredMachine:
    """A machine whose additions are fitted with that mean error."""
    figures = OpFigures(1e-6, per_flop=1e-11, per_byte=1e-10)
    samples = [Sample(1e6, 1e6, 1e-4, 1e-4)]
    fits = {
        name: OpFit(figures, samples, Residual(name, 6, error, 2 * error))
        for name, error in (("onnx.Add", mean), ("onnx.MatMul", 0.01))
    }
    links = {
        kind: LinkFit(
            1e-4, 1e-9, Residual(kind, 7, 0.08 if kind == "all_to_all" else 0.02, 0.2)
        )
        for kind in PASSING
    }
    return MeasuredMachine(
        "machine", "core", 2, 10**9, {"f32": fits}, links, "on paper"
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the mean error of the measurements that are not made."""

    def with_error(mean: float) -> None:
        def calibrate(settings: object, log: Logged) -> MeasuredMachine:
            return machine_with(mean)

        monkeypatch.setattr(calibration, "calibrate", calibrate)

    return with_error


def test_calibrate(tmp_path: Path, measured: Callable[[float], None]) -> None:
    """It prints residuals, the worst first, and writes what `simulate` can use."""
    measured(0.1)
    profile = tmp_path / "mine.json"
    output = succeed("calibrate", "-o", profile).output
    rows = [line.split() for line in output.splitlines()[2:]]
    assert rows[0][:4] == ["onnx.Add", "6", "10.0%", "20.0%"]
    assert "all_reduce" in output and "onnx.MatMul" in output

    model, dist = tmp_path / "m.mlir", tmp_path / "d.mlir"
    size = ("--layers", "1", "--d-model", "8", "--batch", "4")
    succeed("build", "mlp", *size, "-o", model)
    cluster = tmp_path / "mine.mlir"
    succeed("distribute", model, "--cluster", cluster, "-t", "2", "-o", dist)
    assert "on 2 devices of @machine" in succeed("simulate", dist).output


def test_a_bad_fit_is_refused(
    tmp_path: Path, measured: Callable[[float], None]
) -> None:
    """
    Nothing is written without additions; the error has the residual. A larger tolerance
    accepts it.
    """
    measured(0.4)
    profile = tmp_path / "mine.json"
    error = failure("calibrate", "-o", profile)
    assert "onnx.Add: 6 measurements, mean error 40.0%, largest 80.0%" in error
    assert "nothing was written" in error and "--rounds" in error
    assert not list(tmp_path.iterdir())
    succeed("calibrate", "-o", profile, "--tolerance", "0.5")
    assert profile.exists() and profile.with_suffix(".mlir").exists()


def test_from_python(tmp_path: Path, measured: Callable[[float], None]) -> None:
    measured(0.01)
    profile = distir.calibrate(tmp_path / "mine.json", rounds=1)
    assert profile.exists() and profile.with_suffix(".mlir").exists()
    with pytest.raises(
        DistIRError, match=r"distir\.calibrate: .*invalid choice: 'mpi'"
    ):
        distir.calibrate(profile, backend="mpi")


def test_a_bad_fit_is_left_out(
    tmp_path: Path, measured: Callable[[float], None]
) -> None:
    """The other fits are written, and a note names what is not."""
    measured(0.01)
    profile = tmp_path / "mine.json"
    done = succeed("calibrate", "-o", profile, "--tolerance", "0.05")
    assert profile.exists()
    assert "all_to_all is left out of the profile (7 measurements" in done.errors


def test_bad_arguments(tmp_path: Path) -> None:
    assert "give -o mine.json" in failure("calibrate", "-o", tmp_path / "mine.txt")
    assert "there is no folder" in failure(
        "calibrate", "-o", tmp_path / "no/p.json", code=2
    )
    error = failure("calibrate", "-o", tmp_path / "p.json", "--devices", "3")
    assert "needs 1 device, or 2" in error
    error = failure("calibrate", "-o", tmp_path / "p.json", "--backend", "mpi", code=2)
    assert "invalid choice" in error


def test_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    error = failure("calibrate", "-o", tmp_path / "p.json")
    assert "install the extra `distir[torch]`" in error


def test_kernels_are_those_of_a_program(tmp_path: Path) -> None:
    profile, model = tmp_path / "p.json", tmp_path / "m.mlir"
    succeed(
        "build", "mlp", "--layers", "1", "--d-model", "8", "--batch", "4", "-o", model
    )
    (tmp_path / "mine.py").write_text("")
    error = failure("calibrate", "-o", profile, "--kernels", tmp_path / "mine.py")
    assert "add --program model.mlir" in error
    error = failure("calibrate", "-o", profile, "--program", model)
    assert "m.mlir has no kernels" in error
    assert not profile.exists()
