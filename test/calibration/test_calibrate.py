"""From probes to a profile that predicts them, on a machine made of formulas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.schedules import scheduled
from support.thoroughness import sampled
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.calibration import MeasuredMachine, Settings, calibrate
from distir.calibration.communication_probes import communication_probes
from distir.calibration.compute_probes import compute_probes
from distir.calibration.probe import CommunicationProbe, Probe, Prober
from distir.calibration.samples import described
from distir.dialects.kernel import kernels as kernels_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CompiledFunction,
    ComputationStep,
)
from distir.interpreters.simulator.profiles.files import load_profile
from distir.interpreters.simulator.profiles.measured import OpFigures, figures_of
from distir.passes.differentiate import DifferentiatePass
from distir.planning.programs import replace_cluster
from distir.program import entry_function
from distir.scheduling import Schedule, kernels, patterns
from distir.sharding.mesh import meshes

SPEEDS = {
    "onnx.MatMul": OpFigures(5e-6, per_flop=1e-11, per_byte=2e-11),
    "onnx.Gelu": OpFigures(3e-6, per_byte=2e-10),
    "onnx.Add of onnx.MatMul": OpFigures(0.0, per_byte=1e-12),
    "kernel.call @bias_gelu": (KERNEL := OpFigures(2e-6, per_byte=4e-10)),
}
OTHERS = OpFigures(1e-6, per_byte=3e-11)
LINK_S, PER_BYTE = 1e-4, 1e-9


TAKEN: dict[str, float] = {}
"""What the formulas say about probes, by their text."""


def is_communication(probe: Probe, op: Operation) -> bool:
    """Whether an op of a probe is the communication that it measures."""
    return isinstance(probe, CommunicationProbe) and op.name in (
        "dist.send",
        f"collective.{probe.kind}",
    )


def formula_seconds(probe: Probe) -> float:
    """Takes for each op what `SPEEDS` says, for communication what a link would."""
    module = Prober().module(probe)
    total = 0.0
    for op in list(entry_function(module).body.block.ops)[:-1]:
        if is_communication(probe, op):
            assert isinstance(probe, CommunicationProbe)
            total += LINK_S + probe.size * PER_BYTE
        elif op.name != "onnx.Constant":
            found = described(op, meshes(module))
            own = figures_of(op, SPEEDS) or OTHERS
            total += own.seconds(found.flops, found.moved)
    return total


def formula_timer(probes: Sequence[Probe]) -> tuple[list[float], str, int]:
    """Times probes by the formulas, each once."""
    for probe in probes:
        if probe.text not in TAKEN:
            TAKEN[probe.text] = formula_seconds(probe)
    return [TAKEN[probe.text] for probe in probes], "an abacus", 10**9


@pytest.fixture(autouse=True, scope="module")
def parsed_once() -> Iterator[None]:
    """Each text of a probe is parsed once for all calibrations; do not change the programs."""
    parse = Prober.module
    programs: dict[str, ModuleOp] = {}

    def module(prober: Prober, probe: Probe) -> ModuleOp:
        if probe.text not in programs:
            programs[probe.text] = parse(prober, probe)
        return programs[probe.text]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prober, "module", module)
        yield


@pytest.fixture(scope="module")
def machine() -> MeasuredMachine:
    return calibrate(Settings(), lambda line: None, formula_timer)


def test_figures_of_the_machine_are_found(machine: MeasuredMachine) -> None:
    table = machine.ops["f32"]
    for name, figures in {**SPEEDS, "onnx.Sub": OTHERS}.items():
        if figures is KERNEL:
            continue
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
        if p.name in ("onnx.Add of onnx.MatMul", "onnx.Gelu")
        or isinstance(p, CommunicationProbe)
    ]
    assert any(isinstance(p, CommunicationProbe) and p.silent for p in probes)
    seconds, _, _ = formula_timer(probes)
    prober = Prober()
    for probe, took in zip(probes, seconds, strict=True):
        module = prober.module(probe).clone()
        replace_cluster(module, machine.cluster())
        result = simulate(module, profiles=[machine.profile()])
        assert result.step_time_s == pytest.approx(took, rel=1e-3), probe.name


def computations(probe: Probe) -> list[str]:
    ops = entry_function(Prober().module(probe)).body.block.ops
    return [op.name for op in ops if not op.name.startswith(("dist.", "collective."))]


def test_communication_takes_turns_with_products() -> None:
    """
    Every probe of communication has a silent twin, the same without it; the buffer of each
    size is sent once, or there and back.
    """
    probes = [p for p in communication_probes() if isinstance(p, CommunicationProbe)]
    twins = {(p.kind, p.size): p for p in probes if p.silent}
    talking = [p for p in probes if not p.silent]
    assert len(talking) == len(twins) == 35
    for probe in talking:
        twin = twins[probe.kind, probe.size]
        assert computations(probe) == computations(twin)
        assert "onnx.MatMul" in computations(twin)
        assert "device.mesh" not in twin.text  # every device runs it by itself
        sent = probe.text.count("= dist.send") + probe.text.count("= collective.")
        assert sent == (2 if probe.kind == "send" else 1)
        assert "= dist.send" not in twin.text and "= collective." not in twin.text


def test_communication_costs_what_it_does_in_a_program() -> None:
    """
    What communication takes longer between computations than by itself (here 0.8 ms, as
    devices do not arrive together) belongs to its figures, so
    that the simulator predicts what was measured.
    """
    late = 8e-4

    def timer(probes: Sequence[Probe]) -> tuple[list[float], str, int]:
        seconds, device, memory = formula_timer(probes)
        for i, probe in enumerate(probes):
            if isinstance(probe, CommunicationProbe) and not probe.silent:
                seconds[i] += 2 * late if probe.kind == "send" else late
        return seconds, device, memory

    machine = calibrate(Settings(), lambda line: None, timer)
    for kind, fit in machine.links.items():
        assert fit.overhead == pytest.approx(LINK_S + late, rel=1e-3), kind
        assert fit.per_byte == pytest.approx(PER_BYTE, rel=1e-3), kind
    probes = [
        p
        for p in communication_probes()
        if isinstance(p, CommunicationProbe) and not p.silent
    ]
    for probe, took in zip(probes, timer(probes)[0], strict=True):
        module = Prober().module(probe).clone()
        replace_cluster(module, machine.cluster())
        result = simulate(module, profiles=[machine.profile()])
        assert result.step_time_s == pytest.approx(took, rel=1e-3), probe.text


def disturbed_in_turn(
    probes: Sequence[Probe], seconds: Sequence[float], is_disturbed: bool = True
) -> list[float]:
    """Every other measurement of one op and of one collective takes nine times as long."""
    chosen = [i for i, p in enumerate(probes) if p.name == "onnx.Gelu"]
    others = [
        i
        for i, p in enumerate(probes)
        if isinstance(p, CommunicationProbe) and p.kind == "all_to_all" and not p.silent
    ]
    long = {*chosen[::2], *others[::2]} if is_disturbed else set[int]()
    return [took * 9 if i in long else took for i, took in enumerate(seconds)]


def test_what_does_not_fit_is_measured_again() -> None:
    """Only the probes that disagree are; the shorter of two measurements counts."""
    calls: list[int] = []
    logged: list[str] = []

    def disturbed(probes: Sequence[Probe]) -> tuple[list[float], str, int]:
        seconds, device, memory = formula_timer(probes)
        calls.append(len(probes))
        return disturbed_in_turn(probes, seconds, len(calls) == 1), device, memory

    machine = calibrate(Settings(), logged.append, disturbed)
    assert len(calls) == 2 and 0 < calls[1] < 30
    assert "measuring again what does not fit: all_to_all, onnx.Gelu" in logged
    assert not machine.disagreeing(1e-3)


def test_what_never_fits_is_left_out(tmp_path: Path) -> None:
    def disturbed(probes: Sequence[Probe]) -> tuple[list[float], str, int]:
        seconds, device, memory = formula_timer(probes)
        return disturbed_in_turn(probes, seconds), device, memory

    machine = calibrate(Settings(), lambda line: None, disturbed)
    left_out = machine.disagreeing(0.25)
    assert {r.name for r in left_out} == {"onnx.Gelu", "all_to_all"}
    kept = machine.without(left_out)
    assert not kept.disagreeing(0.25)
    assert "onnx.Gelu" not in kept.ops["f32"] and "onnx.Add" in kept.ops["f32"]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(kept.profile_json()))
    figures = load_profile(path).links["link"]
    assert figures.of_kind("all_to_all") == figures.of_kind("nothing")
    sends = [r for r in machine.residuals if r.name == "send"]
    with pytest.raises(DistIRError, match=r"send: 7 .*everything else follows"):
        machine.without(sends)


@pytest.mark.parametrize("is_once", sampled([False, True], 2))
def test_a_link_without_bandwidth_is_measured_again(is_once: bool) -> None:
    """It may be what else uses the machine; a kind that never has one is left out."""
    calls: list[int] = []

    def disturbed(probes: Sequence[Probe]) -> tuple[list[float], str, int]:
        seconds, device, memory = formula_timer(probes)
        calls.append(len(probes))
        if len(calls) == 1 or not is_once:
            for i, p in enumerate(probes):
                if isinstance(p, CommunicationProbe) and p.kind == "all_reduce":
                    seconds[i] = 0.02  # the twin too: nothing is left for the link
        return seconds, device, memory

    machine = calibrate(Settings(), lambda line: None, disturbed)
    assert len(calls) == (2 if is_once else 3)
    left_out = [r.name for r in machine.disagreeing(1.0)]
    assert left_out == ([] if is_once else ["all_reduce"])
    kept = machine.without(machine.disagreeing(1.0))
    assert ("all_reduce" in kept.links) == is_once
    assert kept.profile().links["link"].of_kind("all_reduce").overhead > 0


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
        largest.append(_largest(probes))
        return formula_timer(probes)

    machine = calibrate(Settings("nccl", 2, "bf16"), lambda line: None, timer)
    assert machine.device == "gpu"
    assert machine.peak_flops.keys() == {"bf16"}
    assert machine.profile().ops["bf16"]["onnx.Gelu"].per_byte == pytest.approx(2e-10)
    assert largest == [16 * _largest(communication_probes()) // 2]


def _largest(probes: Sequence[Probe]) -> int:
    """Returns the size of the largest buffer that is sent, in bytes."""
    return max(p.size for p in probes if isinstance(p, CommunicationProbe))


def test_kernels_of_a_program_are_measured() -> None:
    """At several sizes; the simulator then takes what they took, also on parts."""
    s = Schedule()
    s["transformer.h.*"].find(patterns.bias_gelu_tanh).replace(
        kernels.bias_gelu.having(approximate="tanh")
    )
    model = build_gpt(layers=1, d_model=32, heads=4, vocab=32, batch=16, seq=16)
    asked = scheduled(model, s)
    found = kernels_of(asked)
    seen: list[Probe] = []

    def timer(probes: Sequence[Probe]) -> tuple[list[float], str, int]:
        seen.extend(probe for probe in probes if "kernel" in probe.name)
        return formula_timer(probes)

    settings = Settings(kernels=tuple(found.values()))
    machine = calibrate(settings, lambda line: None, timer)
    (name,) = {probe.name for probe in seen}
    assert name == "kernel.call @bias_gelu" and len(seen) > 3
    figures = machine.profile().ops["f32"][name]
    assert figures.overhead == pytest.approx(KERNEL.overhead)
    assert figures.per_byte == pytest.approx(KERNEL.per_byte, rel=1e-3)
    for options in ({}, {"d": 2}):
        program = distributed(asked, **options)
        replace_cluster(program, machine.cluster())
        run = simulate(program, profiles=[machine.profile()]).run
        steps = computation_steps(run.compiled)
        (step,) = (s for s in steps if s.op.name == "kernel.call")
        moved = 2 * 16 * 16 * 128 * 4 / options.get("d", 1) + 128 * 4
        assert float(np.max(step.seconds)) == pytest.approx(
            KERNEL.seconds(0, moved), rel=1e-3
        )


def test_a_kernel_that_cannot_be_split_is_not_fitted() -> None:
    s = Schedule()
    s.find(patterns.bias_gelu_tanh).replace(
        kernels.bias_gelu.having(approximate="tanh")
    )
    model = build_gpt(layers=1, d_model=1, heads=1, vocab=3, batch=1, seq=1)
    found = kernels_of(scheduled(model, s))
    with pytest.raises(
        DistIRError, match=r"kernel @bias_gelu .* can be measured at \d size"
    ):
        calibrate(
            Settings(kernels=tuple(found.values())), lambda line: None, formula_timer
        )


@pytest.mark.parametrize("model", ["gpt", "mlp"])
def test_ops_of_training_steps_are_measured(model: str) -> None:
    """
    No op that computes in a distributed step of these models is left to the curve of its
    class, so that a change of what programs are made of is noticed here.
    """
    if model == "gpt":
        module = build_gpt(layers=2, d_model=32, heads=4, vocab=32, batch=8, seq=16)
        loss = "cross_entropy"
    else:
        module, loss = build_mlp(3, 32, 8), "mse"
    DifferentiatePass(loss=loss, optimizer="adamw").apply(Context(), module)
    probes = (*compute_probes(), *communication_probes())
    measured = {probe.name: OTHERS for probe in probes}
    for options in ({"d": 2, "k": 2}, {"t": 2}, {"d": 2, "zero": 3}, {"p": 2, "k": 2}):
        program = distributed(module, **options)
        compiled = simulate(program).run.compiled
        steps = [s.op for s in computation_steps(compiled)]
        others = {op.name for op in steps if figures_of(op, measured) is None}
        assert others <= {"onnx.Constant"}, options


def computation_steps(function: CompiledFunction) -> list[ComputationStep]:
    """Returns the computations of a function and of those that it calls."""
    found: list[ComputationStep] = []
    for step in function.steps:
        if isinstance(step, CallStep):
            found += computation_steps(step.callee)
        elif isinstance(step, ComputationStep):
            found.append(step)
    return found
