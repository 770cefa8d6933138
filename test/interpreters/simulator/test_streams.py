"""Communication beside computation: hand-computed times, memory, and what is exposed."""

import json
from pathlib import Path

import pytest
from support.asynchronous import collective, main, relu
from support.cost_programs import cluster, simulate_text

from distir.interpreters.simulator import Simulation, TimeReport, simulate

DEVICES = cluster(4, levels=((4, 1.0, 0.0),), launch=1.0)
"""Every computation takes a second, and every byte that a device sends."""


def both_ways(text: str) -> Simulation:
    """The simulation of the program, which is the same op by op."""
    result = simulate_text(text, DEVICES)
    flat = simulate(result.run.module, DEVICES, flat=True)
    for name in ("step_time_s", "peak_memory_bytes", "idle_s", "transit_s"):
        assert getattr(result, name) == pytest.approx(getattr(flat, name), abs=1e-12)
    return result


def test_an_all_reduce_beside_computation():
    """Of its 16 seconds (2 x 1/2 x 16 bytes) two are hidden; the device waits for 14."""
    body = collective("all_reduce", "r", "p") + relu("a", "x") + relu("b", "a")
    text = main(body + relu("c", "r"), "c")
    result = both_ways(text)
    assert result.step_time_s == 16 + 1
    assert result.compute_s == [3.0, 3.0]
    assert result.communication_s == [0.0, 0.0]
    assert result.transit_s == result.idle_s == [14.0, 14.0]
    assert result.exposed_communication_s == [14.0, 14.0]
    assert result.communication_bytes == [16, 16]
    blocking = both_ways(text.replace(" {dist.asynchronous}", ""))
    assert blocking.step_time_s == 16 + 3
    assert blocking.communication_s == [16.0, 16.0]


def test_collectives_take_turns_on_the_stream():
    """Two gathers of 8 s each; the first use waits for one, the second for the other."""
    body = collective("all_gather", "g", "s") + collective("all_gather", "h", "s")
    result = both_ways(main(body + relu("a", "g") + relu("b", "h"), "b"))
    assert result.step_time_s == 8 + 8 + 1
    assert result.compute_s == [2.0, 2.0]
    assert result.transit_s == [
        15.0,
        15.0,
    ]  # all but the second in which %a is computed


def test_waiting_for_what_is_behind_others_is_exposed():
    """The second of two is waited for first: all of the time the stream is busy."""
    body = collective("all_gather", "g", "s") + collective("all_gather", "h", "s")
    result = both_ways(main(body + relu("a", "h") + relu("b", "g"), "b"))
    assert result.step_time_s == 16 + 2
    assert result.transit_s == [16.0, 16.0]


def test_a_blocking_collective_waits_for_the_stream():
    body = collective("all_gather", "g", "s") + relu("a", "x")
    body += collective("all_reduce", "r", "p", start=False)
    result = both_ways(main(body + relu("b", "g"), "b"))
    assert result.step_time_s == 8 + 16 + 1
    assert result.communication_s == [16.0, 16.0]
    assert result.transit_s == [7.0, 7.0]


def test_a_function_returns_what_is_on_its_way():
    """The caller computes a second while what two calls started arrives."""
    function = f"""
    func.func private @f(%x: tensor<4xf32, #W>, %p: tensor<4xf32, #P>) -> (tensor<4xf32, #W>, tensor<4xf32, #W>) {{
      {collective("all_reduce", "r", "p")}{relu("a", "x")}
      func.return %a, %r : tensor<4xf32, #W>, tensor<4xf32, #W>
    }}"""
    call = (
        "= func.call @f(%{}, %p) : (tensor<4xf32, #W>, tensor<4xf32, #P>) -> "
        "(tensor<4xf32, #W>, tensor<4xf32, #W>)\n"
    )
    body = "%a, %r " + call.format("x") + "%b, %q " + call.format("a")
    result = both_ways(main(body + relu("c", "b") + relu("d", "q"), "d", function))
    assert result.step_time_s == 32 + 1
    assert result.compute_s == [4.0, 4.0]
    assert result.transit_s == [29.0, 29.0]


def test_what_the_program_returns_is_waited_for():
    result = both_ways(main(relu("a", "x") + collective("all_reduce", "r", "p"), "r"))
    assert result.step_time_s == 1 + 16
    assert result.transit_s == [16.0, 16.0]


def test_an_operand_is_held_until_its_collective_is_done():
    """
    Beside the arguments (16 + 8 + 16 bytes): a scattered operand and its part, then what is
    computed meanwhile. An all-reduce works on a copy, so its operand is freed.
    """
    partial = "tensor<4xf32, #P>"
    operand = f"%o = onnx.Neg(%p) : ({partial}) -> {partial}\n"
    rest = relu("a", "x")
    scattered = operand + collective("reduce_scatter", "r", "o") + rest
    gathered = collective("all_gather", "g", "r", start=False)
    assert both_ways(main(scattered + gathered, "g")).peak_memory_bytes == [80, 80]
    reduced = operand + collective("all_reduce", "r", "o") + rest
    assert both_ways(main(reduced, "r")).peak_memory_bytes == [72, 72]


def test_a_late_device_holds_up_the_stream_of_the_others():
    """Device 0 starts at once, but device 1 comes to the collective after two seconds."""
    text = """
    device.mesh @m on @c <d = 2> [0, 1]
    device.mesh @one on @c <> [1]
    #W = #dist.layout<@m>
    #P = #dist.layout<@m, [], partial sum {d}>
    #O = #dist.layout<@one>
    func.func @main(%x: tensor<4xf32, #W>, %p: tensor<4xf32, #P>, %o: tensor<4xf32, #O>) -> tensor<4xf32, #W> {
      %1 = onnx.Relu(%o) : (tensor<4xf32, #O>) -> tensor<4xf32, #O>
      %2 = onnx.Relu(%1) : (tensor<4xf32, #O>) -> tensor<4xf32, #O>
      %r = collective.all_reduce %p over [d] {dist.asynchronous} : tensor<4xf32, #P> -> tensor<4xf32, #W>
      %y = onnx.Relu(%x) : (tensor<4xf32, #W>) -> tensor<4xf32, #W>
      %z = onnx.Add(%r, %y) : (tensor<4xf32, #W>, tensor<4xf32, #W>) -> tensor<4xf32, #W>
      func.return %z : tensor<4xf32, #W>
    }"""
    result = both_ways(text)
    assert result.step_time_s == 2 + 16 + 1
    assert result.compute_s == [2.0, 4.0]
    assert result.idle_s == [17.0, 15.0]
    assert result.transit_s == [16.0, 15.0]


def test_reports_say_what_is_waited_for(tmp_path: Path):
    body = collective("all_reduce", "r", "p") + relu("a", "x")
    result = both_ways(main(body + relu("c", "r"), "c"))
    report = TimeReport.of(result)
    assert report.busiest.total.exposed_communication == 15 * 10**15
    causes = {c.op: s for c, s in report.busiest.spent.items()}
    assert causes["collective.all_reduce"].exposed_communication == 15 * 10**15
    result.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    beside = [e for e in events if e["ph"] == "X" and e["tid"] == 1]
    assert [(e["pid"], e["ts"], e["dur"]) for e in beside] == [
        (0, 0.0, 16e6),
        (1, 0.0, 16e6),
    ]
