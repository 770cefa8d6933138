"""Communication beside computation: hand-computed times, memory, and what is exposed."""

import json
from pathlib import Path

import pytest
from support.asynchronous import collective, main, relu
from support.cost_programs import cluster, simulate_text

from distir.dialects.device import ClusterOp
from distir.interpreters.simulator import Simulation, TimeReport, simulate

DEVICES = cluster(4, levels=((4, 1.0, 0.0),), launch=1.0)
"""Every computation takes a second, and every byte that a device sends."""


def both_ways(text: str, devices: ClusterOp = DEVICES) -> Simulation:
    """The simulation of the program, which is the same op by op, and in reports."""
    result = simulate_text(text, devices)
    flat = simulate(result.run.module, devices, flat=True)
    names = ("step_time_s", "peak_memory_bytes", "idle_s", "transit_s")
    for name in (*names, "communication_s", "compute_s"):
        assert getattr(result, name) == pytest.approx(getattr(flat, name), abs=1e-12)
    every = result.compute_s, result.communication_s, result.idle_s
    for parts in zip(*every, strict=True):
        assert sum(parts) == pytest.approx(result.step_time_s, abs=1e-12)
    busiest = TimeReport.of(result).busiest
    spent, device = busiest.total, busiest.group.index
    assert spent.total == result.step_time_s * 10**15
    assert spent.compute == result.compute_s[device] * 10**15
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


ONE_LINK = cluster(8, levels=((8, 1.0, 0.0),), launch=1.0)
"""All groups communicate over the same links."""

TWO_LINKS = cluster(8, levels=((2, 1.0, 0.0), (8, 1.0, 0.0)), launch=1.0)
"""Groups over t have links of their own: those of pairs of devices."""

MIXED_LINKS = cluster(8, levels=((4, 4.0, 0.0), (8, 1.0, 0.0)), launch=1.0)
"""Groups over t use the fast links, and those over d both kinds."""


def two_groups(body: str, returned: str = "b") -> str:
    """
    Returns a program on devices <d = 4, t = 2> with a whole %x, a %s in parts over d and
    a %p in parts over t.
    """
    return f"""
    device.mesh @m on @c <d = 4, t = 2> [0 to 8]
    #W = #dist.layout<@m>
    #D = #dist.layout<@m, [{{d}}]>
    #T = #dist.layout<@m, [{{t}}]>
    func.func @main(%x: tensor<4xf32, #W>, %s: tensor<4xf32, #D>, %p: tensor<4xf32, #T>) -> tensor<4xf32, #W> {{
      {body}
      func.return %{returned} : tensor<4xf32, #W>
    }}"""


def gather(result: str, axis: str, *, start: bool) -> str:
    """Returns the text of an all-gather of 16 bytes: over d of %s, over t of %p."""
    operand, before = {"d": ("s", "D"), "t": ("p", "T")}[axis]
    attribute = " {dist.asynchronous}" if start else ""
    return (
        f"%{result} = collective.all_gather %{operand} over [{axis}]{attribute} : "
        f"tensor<4xf32, #{before}> -> tensor<4xf32, #W>\n"
    )


@pytest.mark.parametrize(("devices", "communicates", "waits"), [
    (TWO_LINKS, 8, 3),  # beside each other: d arrives after 12 s, t is done after 8
    (ONE_LINK, 16, 3),  # a half of the link each: t takes 16 s, d has 4 s left
    (MIXED_LINKS, 3, 2),  # d needs a third of the fast links, so t takes 2 / (2/3) s
])  # fmt: skip
def test_a_blocking_collective_shares_links_with_those_of_other_groups(
    devices: ClusterOp, communicates: int, waits: int
):
    """
    A gather over d takes 12 s (3/4 of 16 bytes), or 2 s and 4 s on mixed links. Beside it
    one over t takes 8 s (2 s on mixed links) by itself; then an op computes for a second.
    """
    body = gather("g", "d", start=True) + gather("h", "t", start=False)
    result = both_ways(two_groups(body + relu("a", "h") + relu("b", "g")), devices)
    assert result.communication_s == pytest.approx([communicates] * 8)
    assert result.transit_s == pytest.approx([waits] * 8)
    assert result.step_time_s == pytest.approx(communicates + 1 + waits + 1)


def test_a_shared_link_delays_the_collective_of_the_other_group():
    """After 16 s 4 of the 12 s of the first are left: of 20, not of 12 s."""
    body = gather("g", "d", start=True) + gather("h", "t", start=False)
    result = both_ways(two_groups(body + relu("b", "g")), ONE_LINK)
    assert result.step_time_s == pytest.approx(16 + 4 + 1)
    # Within a function, which is summarised.
    called = body.replace("%g", "%e").replace("%h", "%f")
    text = two_groups(
        "%g, %h = func.call @f(%s, %p) : (tensor<4xf32, #D>, tensor<4xf32, #T>) -> "
        "(tensor<4xf32, #W>, tensor<4xf32, #W>)\n" + relu("b", "g")
    ).replace(
        "func.func @main",
        f"""func.func private @f(%s: tensor<4xf32, #D>, %p: tensor<4xf32, #T>) -> (tensor<4xf32, #W>, tensor<4xf32, #W>) {{
      {called}
      func.return %e, %f : tensor<4xf32, #W>, tensor<4xf32, #W>
    }}
    func.func @main""",
    )
    assert both_ways(text, ONE_LINK).step_time_s == pytest.approx(16 + 4 + 1)


@pytest.mark.parametrize(
    ("devices", "until"), [(TWO_LINKS, 8), (ONE_LINK, 20), (MIXED_LINKS, 3)]
)
def test_asynchronous_collectives_of_two_groups(devices: ClusterOp, until: int):
    """
    On one link they take turns: 12 and 8 s. On two they run beside each other. The one
    behind gets what the other leaves: two thirds of the fast links.
    """
    body = gather("g", "d", start=True) + gather("h", "t", start=True)
    result = both_ways(two_groups(body + relu("b", "h"), "b"), devices)
    end = {8: 12, 20: 21, 3: 6}[until]
    assert result.compute_s == [1.0] * 8
    assert result.transit_s[0] == pytest.approx(until)
    assert result.step_time_s == pytest.approx(max(end, until + 1))


def test_a_blocking_collective_waits_for_its_own_group():
    body = gather("g", "t", start=True) + gather("h", "t", start=False)
    result = both_ways(two_groups(body + relu("b", "h")), ONE_LINK)
    assert result.communication_s == [8.0] * 8
    assert result.transit_s == [8.0] * 8


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
