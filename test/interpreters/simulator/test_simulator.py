"""Simulations of whole programs: clusters, traces, reports and bad input."""

import json
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from support.cost_programs import cluster, parse, simulate_text

from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.interpreters.simulator import report, simulate

PIPELINE = Path(__file__).parents[2] / "filecheck" / "simulate" / "pipeline.mlir"


def kind(name: str, devices: list[int], launch: float, memory: int = 100) -> KindOp:
    return KindOp(
        name,
        devices,
        memory=memory,
        memory_bandwidth=1e300,
        peak_flops={"default": 1e300},
        launch_latency=launch,
    )


def test_a_sequential_program_runs_on_device_0():
    result = simulate(build_mlp(2, 8, 4), load_cluster("dgx2"))
    assert result.devices == [0]
    assert result.cluster == "dgx2"
    assert result.communication_bytes == [0]
    assert result.throughput_samples_per_s == 4 / result.step_time_s


def test_a_slow_device_holds_up_its_group_but_not_the_others():
    mixed = ClusterOp(
        "c",
        [kind("fast", [0, 1, 3], 1.0), kind("slow", [2], 5.0)],
        [LinkOp("l", 4, bandwidth=1e300, latency=1.0)],
    )
    result = simulate_text(
        """
        device.mesh @m on @c <a = 2, b = 2> [0 to 4]
        #x = #dist.layout<@m, [{a, b}]>
        #y = #dist.layout<@m, [{a}]>
        func.func @main(%x: tensor<8xf32, #x>) -> tensor<8xf32, #y> {
          %h = onnx.Relu(%x) : (tensor<8xf32, #x>) -> tensor<8xf32, #x>
          %y = collective.all_gather %h over [b] : tensor<8xf32, #x> -> tensor<8xf32, #y>
          %z = onnx.Relu(%y) : (tensor<8xf32, #y>) -> tensor<8xf32, #y>
          func.return %z : tensor<8xf32, #y>
        }""",
        mixed,
    )
    assert result.compute_s == [2.0, 2.0, 10.0, 2.0]
    assert result.communication_s == [1.0] * 4
    assert result.step_time_s == 5 + 1 + 5
    assert result.idle_s == [8.0, 8.0, 0.0, 8.0]


def test_whether_it_fits():
    small = ClusterOp(
        "pair",
        [kind("small", [0], 1.0, memory=4095), kind("large", [1], 1.0, memory=4096)],
        [LinkOp("l", 2, bandwidth=1e300, latency=1.0)],
    )
    result = simulate(parse(PIPELINE.read_text()), small)
    assert not result.fits
    assert result.too_small == [0]
    assert "does not fit into the memory of devices [0]" in report(result)
    assert simulate(parse(PIPELINE.read_text())).fits


def test_json_has_the_stable_keys(tmp_path: Path):
    result = simulate(parse(PIPELINE.read_text()))
    result.write_json(tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["step_time_s"] == 33.0
    assert data["throughput_samples_per_s"] == 8 / 33
    assert data["peak_memory_bytes"] == [4096, 4096]
    assert data["communication_bytes"] == [512, 512]
    assert data["ops"] == 44
    assert data["fits"] is True


def test_the_trace_covers_every_busy_second(tmp_path: Path):
    result = simulate(parse(PIPELINE.read_text()))
    result.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == ["device 0 of pair", "device 1 of pair"]
    spans = [e for e in events if e["ph"] == "X"]
    for device in (0, 1):
        own = sorted((e["ts"], e["dur"]) for e in spans if e["pid"] == device)
        assert all(a + d <= b for (a, d), (b, _) in pairwise(own))
        for category, busy in (
            ("compute", result.compute_s),
            ("communication", result.communication_s),
        ):
            seconds = sum(
                e["dur"] / 1e6
                for e in spans
                if e["pid"] == device and e["cat"] == category
            )
            assert seconds == pytest.approx(busy[device])
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(33e6)


def chain(name: str, op: str, times: int) -> str:
    """A function that applies an op so many times."""
    type_ = "tensor<1024xf32, #x>"
    lines = "\n".join(
        f"%x{i + 1} = {op}(%x{i}) : ({type_}) -> {type_}" for i in range(times)
    )
    return f"""func.func @{name}(%x0: {type_}) -> {type_} {{
      {lines}
      func.return %x{times} : {type_}
    }}"""


@pytest.mark.parametrize("calls", [10, pytest.param(160, marks=pytest.mark.slow)])
def test_a_trace_is_written_event_by_event(calls: int, tmp_path: Path):
    """64,000 or a million events go through the same megabyte of memory."""
    devices = 64
    result = simulate_text(
        f"""
        device.mesh @m on @c <d = {devices}> [0 to {devices}]
        #x = #dist.layout<@m, [{{d}}]>
        {chain("block", "onnx.Relu", 10)}
        {chain("layer", "func.call @block", 10)}
        {chain("main", "func.call @layer", calls)}""",
        cluster(devices, launch=1.0),
    )
    tracemalloc.start()
    try:
        result.write_trace(tmp_path / "trace.json")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    events = devices * 100 * calls
    assert (tmp_path / "trace.json").stat().st_size > 100 * events
    assert most < 10**6
    with (tmp_path / "trace.json").open() as file:
        assert sum('"ph": "X"' in line for line in file) == events


def test_utilisation_takes_the_peak_of_each_element_type():
    """2 x 8 x 8 x 8 operations at 1 and at 4 a second, each after a launch of 100 s."""
    kind = KindOp(
        "unit",
        [0],
        memory=10**9,
        memory_bandwidth=1e300,
        peak_flops={"f32": 1.0, "f16": 4.0},
        launch_latency=100.0,
    )
    result = simulate_text(
        """
        func.func @main(%x: tensor<8x8xf32>, %h: tensor<8x8xf16>) -> (tensor<8x8xf32>, tensor<8x8xf16>) {
          %y = onnx.MatMul(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
          %g = onnx.MatMul(%h, %h) : (tensor<8x8xf16>, tensor<8x8xf16>) -> tensor<8x8xf16>
          func.return %y, %g : tensor<8x8xf32>, tensor<8x8xf16>
        }""",
        ClusterOp("c", [kind], [LinkOp("l", 1, bandwidth=1.0, latency=0.0)]),
    )
    assert result.seconds_at_peak == [1024 + 256]
    assert result.step_time_s == 1024 + 256 + 200
    assert result.mfu == 1280 / 1480
    assert result.exposed_communication == result.bubble_fraction == 0


@pytest.mark.parametrize("flat", [False, True])
def test_computing_communicating_and_waiting_add_up_to_the_step(flat: bool):
    result = simulate(parse(PIPELINE.read_text()), flat=flat)
    for parts in zip(
        result.compute_s,
        result.exposed_communication_s,
        result.waiting_s,
        strict=True,
    ):
        assert sum(parts) == result.step_time_s
    assert result.bubble_fraction == (10 + 8) / (2 * 33)
    assert result.exposed_communication == (4 + 4) / (2 * 33)
    data = result.to_json()
    assert data["mfu"] == result.mfu
    assert data["bubble_fraction"] == result.bubble_fraction
    assert data["exposed_communication_s"] == [4, 4]
    assert data["waiting_s"] == [10, 8]


def test_the_trace_names_the_layer_that_a_call_runs(tmp_path: Path):
    result = simulate(build_gpt(2, 16, 2, 32, 1, 4), load_cluster("cpu"))
    result.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    scopes = {e["args"].get("scope", "") for e in events}
    assert any(s.startswith("transformer.h.0.") for s in scopes)
    assert any(s.startswith("transformer.h.1.") for s in scopes)
    assert not any("*" in s for s in scopes)


def test_an_unwritable_file_is_an_error(tmp_path: Path):
    result = simulate(parse(PIPELINE.read_text()))
    for write in (result.write_json, result.write_trace):
        with pytest.raises(DistIRError, match=r"cannot write .*No such file"):
            write(tmp_path / "missing" / "file.json")


T = "tensor<4xf32>"
D = "tensor<4xf32, #dist.layout<@m>>"
MESH = "device.mesh @m on @c <t = 2> [0 to 2]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "func.func @f() { func.call @g() : () -> () \n func.return }\n"
            "func.func @g() { func.call @f() : () -> () \n func.return }\n"
            "func.func @main() { func.call @f() : () -> () \n func.return }",
            "cycle: @main -> @f -> @g -> @f",
        ),
        (
            f"func.func private @g({T}) -> {T}\n"
            f"func.func @main(%x: {T}) -> {T} {{\n"
            f"%y = func.call @g(%x) : ({T}) -> {T}\nfunc.return %y : {T}\n}}",
            "@g has no body",
        ),
        (
            "func.func @main(%x: tensor<?xf32>) {\n"
            "%y = onnx.Relu(%x) : (tensor<?xf32>) -> tensor<?xf32>\nfunc.return\n}",
            "cannot simulate a value of type.*fold-shapes",
        ),
        (
            "func.func @main(%x: tensor<*xf32>) {\nfunc.return\n}",
            "argument 'x' has dimensions of unknown size",
        ),
        (
            f"{MESH}func.func @main(%x: {D}) {{\n"
            f"%y = dist.reshard %x : {D} -> tensor<4xf32, #dist.layout<@m, [{{t}}]>>\n"
            "func.return\n}",
            "dist.reshard.*lower-reshard",
        ),
        (
            f"func.func @main(%x: {T}) {{\n"
            "collective.send %x to 1 : " + T + "\nfunc.return\n}",
            "collective.send belongs to one rank's program",
        ),
        (
            f"{MESH}device.mesh @n on @c <> [0]\n"
            f"func.func @main(%x: {D}, %y: tensor<4xf32, #dist.layout<@n>>) {{\n"
            f"%z = onnx.Add(%x, %y) : ({D}, tensor<4xf32, #dist.layout<@n>>) -> {D}\n"
            "func.return\n}",
            "onnx.Add.*meshes @m and @n",
        ),
        (
            f"{MESH}func.func @main(%x: {D}) {{\n"
            f"%y = onnx.Relu(%x) : ({D}) -> {T}\nfunc.return\n}}",
            "has no layout",
        ),
        (
            "func.func @main(%x: tensor<4xf32, #dist.layout<@nowhere>>) {\nfunc.return\n}",
            "no device.mesh @nowhere",
        ),
        (
            "device.mesh @m on @c <t = 4> [0 to 4]\n"
            f"func.func @main(%x: {D}) {{\nfunc.return\n}}",
            "device 3, but cluster @c has only 2",
        ),
        (
            f"{MESH}func.func @main(%x: tensor<3xf32, #dist.layout<@m, [{{t}}]>>) {{\n"
            "func.return\n}",
            "size 3 cannot be split evenly",
        ),
        (
            f"{MESH}#s = #dist.layout<@m, [{{}}, {{t}}]>\n#w = #dist.layout<@m>\n"
            "func.func @main(%x: tensor<4x4xf32, #s>, %w: tensor<4x4xf32, #w>) {\n"
            "%y = onnx.MatMul(%x, %w) : (tensor<4x4xf32, #s>, tensor<4x4xf32, #w>) "
            "-> tensor<4x4xf32, #w>\nfunc.return\n}",
            "onnx.MatMul.*expected layout.*verify-distribution",
        ),
        ("builtin.module {}", "0 functions"),
    ],
)
def test_programs_that_cannot_be_simulated(text: str, message: str):
    with pytest.raises(DistIRError, match=message) as error:
        simulate_text(text, cluster(2))
    assert "\n" not in str(error.value)


def test_a_program_without_a_cluster():
    with pytest.raises(DistIRError, match="names no cluster"):
        simulate(build_mlp(1, 4, 4))
    text = f"{MESH}func.func @main(%x: {D}) {{\nfunc.return\n}}"
    with pytest.raises(DistIRError, match=r"does not hold the device.cluster @c"):
        simulate(parse(text))


def test_a_missing_rate_is_an_error():
    only_f16 = KindOp("k", [0], memory=1, memory_bandwidth=1.0, peak_flops={"f16": 1.0})
    with pytest.raises(DistIRError, match="@k gives no peak_flops for f32"):
        simulate(build_mlp(1, 4, 4), ClusterOp("c", [only_f16], []))
