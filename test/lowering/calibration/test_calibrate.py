"""From probes to a profile that predicts them, on a machine made of formulas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.profiles.files import load_profile
from distir.interpreters.simulator.profiles.measured import OpFigures, figures_of
from distir.lowering.calibration import MeasuredMachine, Settings, calibrate
from distir.lowering.calibration.communication_probes import communication_probes
from distir.lowering.calibration.compute_probes import compute_probes
from distir.lowering.calibration.probe import Probe, Prober
from distir.lowering.calibration.samples import described
from distir.planning.programs import replace_cluster
from distir.program import entry_function
from distir.sharding.mesh import meshes

SPEEDS = {
    "onnx.MatMul": OpFigures(5e-6, per_flop=1e-11, per_byte=2e-11),
    "onnx.Gelu": OpFigures(3e-6, per_byte=2e-10),
    "onnx.Add of onnx.MatMul": OpFigures(0.0, per_byte=1e-12),
}
OTHERS = OpFigures(1e-6, per_byte=3e-11)
LINK_S, PER_BYTE = 1e-4, 1e-9


def formula_timer(probes: Sequence[Probe]) -> tuple[list[float], str, int]:
    """Takes for each op what `SPEEDS` says, for communication what a link would."""
    prober, seconds = Prober(), list[float]()
    for probe in probes:
        module = prober.module(probe)
        if probe.kind:
            took = LINK_S + probe.size * PER_BYTE
            seconds.append(2 * took if probe.kind == "send" else took)
            continue
        total = 0.0
        for op in list(entry_function(module).body.block.ops)[:-1]:
            if op.name != "onnx.Constant":
                found = described(op, meshes(module))
                own = figures_of(op, SPEEDS) or OTHERS
                total += own.seconds(found.flops, found.moved)
        seconds.append(total)
    return seconds, "an abacus", 10**9


@pytest.fixture(scope="module")
def machine() -> MeasuredMachine:
    return calibrate(Settings(), lambda line: None, formula_timer)


def test_figures_of_the_machine_are_found(machine: MeasuredMachine) -> None:
    table = machine.ops["f32"]
    for name, figures in {**SPEEDS, "onnx.Sub": OTHERS}.items():
        assert table[name].figures.overhead == pytest.approx(figures.overhead, abs=1e-9)
        assert table[name].figures.per_byte == pytest.approx(figures.per_byte, rel=1e-3)
    assert machine.links["all_reduce"].overhead == pytest.approx(LINK_S)
    assert machine.links["send"].per_byte == pytest.approx(PER_BYTE)
    assert max(r.largest for r in machine.residuals) < 1e-3


def test_files_round_trip(machine: MeasuredMachine, tmp_path: Path) -> None:
    """The written profile and cluster are what `simulate` reads, and say the same."""
    profile, cluster = tmp_path / "p.json", tmp_path / "c.mlir"
    profile.write_text(json.dumps(machine.profile_json()))
    cluster.write_text(machine.cluster_text())
    read = load_profile(profile)
    assert read.ops == machine.profile().ops
    assert read.links == machine.profile().links
    assert read.device == "core"
    assert str(load_cluster(cluster)) == str(machine.cluster())
    assert "an abacus" in cluster.read_text()


def test_predictions_are_the_measurements(machine: MeasuredMachine) -> None:
    """A program of measured ops takes what they took; so does each collective."""
    probes = [
        p
        for p in (*compute_probes(), *communication_probes())
        if p.name in ("onnx.Add of onnx.MatMul", "onnx.Gelu") or p.kind
    ]
    seconds, _, _ = formula_timer(probes)
    prober = Prober()
    for probe, took in zip(probes, seconds, strict=True):
        module = prober.module(probe)
        replace_cluster(module, machine.cluster())
        result = simulate(module, profiles=[machine.profile()])
        assert result.step_time_s == pytest.approx(took, rel=1e-3), probe.name


def test_one_device_has_no_links() -> None:
    machine = calibrate(Settings(devices=1), lambda line: None, formula_timer)
    assert not machine.links and not machine.cluster().links
    assert not machine.profile_json()["links"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(backend="mpi"), r"no backend 'mpi'; choose one of gloo, nccl"),
        (Settings(devices=3), r"needs 1 device, or 2 to measure links too, not 3"),
    ],
)
def test_bad_settings(settings: Settings, message: str) -> None:
    with pytest.raises(DistIRError, match=message):
        calibrate(settings, lambda line: None, formula_timer)


def test_gpus() -> None:
    """Every probe is a valid program in other element types, and larger on a GPU."""
    largest: list[int] = []

    def timer(probes: Sequence[Probe]) -> tuple[list[float], str, int]:
        largest.append(max(p.size for p in probes))
        return formula_timer(probes)

    machine = calibrate(Settings("nccl", 2, "bf16"), lambda line: None, timer)
    assert machine.device == "gpu"
    assert machine.peak_flops.keys() == {"bf16"}
    assert machine.profile().ops["bf16"]["onnx.Gelu"].per_byte == pytest.approx(2e-10)
    f32 = max(p.size for p in communication_probes())
    assert largest == [16 * f32 // 2]
