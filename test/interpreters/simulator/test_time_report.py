"""Where the time goes: every femtosecond of every device has one cause."""

from itertools import pairwise, product

import pytest
from support.cost_programs import MACHINES, STRATEGIES, distributed, simulate_text
from support.thoroughness import sampled
from support.training_programs import training_gpt

from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.dialects.dist import SendOp
from distir.interpreters.simulator import Simulation, simulate
from distir.interpreters.simulator.reports.time_report import (
    TICKS_PER_SECOND,
    Cause,
    TimeRecorder,
    TimeReport,
)


@pytest.mark.parametrize(
    ("options", "flat"), sampled(product(STRATEGIES, (False, True)), 5)
)
def test_causes_add_up_to_the_step(options, flat):
    result = simulate(distributed(training_gpt(), MACHINES, **options), flat=flat)
    report = TimeReport.of(result)
    assert report.end / TICKS_PER_SECOND == pytest.approx(result.step_time_s, rel=1e-9)
    assert sorted(d for g in report.groups for d in g.group.devices) == result.devices
    for time in report.groups:
        assert sum(spent.total for spent in time.spent.values()) == report.end
        for device in time.group.devices:
            i = result.devices.index(device)
            for ticks, seconds in (
                (time.total.compute, result.compute_s[i]),
                (time.total.exposed_communication, result.exposed_communication_s[i]),
                (time.total.waiting, result.waiting_s[i]),
            ):
                expected = pytest.approx(seconds, abs=1e-9 * result.step_time_s)
                assert ticks / TICKS_PER_SECOND == expected


@pytest.mark.parametrize("parts", [0, 50])
def test_the_timeline_covers_what_a_device_does(parts: int):
    """One block for each op, or blocks of at most a fiftieth of the step."""
    module = distributed(training_gpt(), MACHINES, d=2, p=2, k=2)
    sends = [op for op in module.walk() if isinstance(op, SendOp)]
    result = simulate(module)
    resolution = result.step_time_s / parts if parts else 0.0
    recorder = TimeRecorder(result.groups, resolution)
    result.run.follow(recorder)
    report = recorder.report()
    for time in report.groups:
        blocks = time.blocks
        assert all(before.end <= after.begin for before, after in pairwise(blocks))
        assert sum(b.compute for b in blocks) == time.total.compute
        assert all(b.compute + b.communication <= b.end - b.begin for b in blocks)
        # What is not communication of its own is waiting for sends.
        communication = sum(b.communication for b in blocks)
        assert communication <= time.total.exposed_communication
        # Calls follow each other too, and hold most of the work.
        assert time.calls and all(call.function for call in time.calls)
        assert sum(call.compute for call in time.calls) <= time.total.compute
        assert sum(send.ops for send in time.sends) == len(sends)
    counts = [len(time.blocks) for time in report.groups]
    assert all(count <= 2 * parts for count in counts) if parts else min(counts) > 100


SEND = """
device.mesh @a on @c <> [0]
device.mesh @b on @c <> [1]
#a = #dist.layout<@a>
#b = #dist.layout<@b>
func.func @main(%x: tensor<8xi8, #a>, %z: tensor<8xi8, #b>) -> tensor<8xi8, #b> {
  %h = onnx.Relu(%x) {scope = "layer.0"} : (tensor<8xi8, #a>) -> tensor<8xi8, #a>
  %s = dist.send %h ASYNC : tensor<8xi8, #a> -> tensor<8xi8, #b>
  %k = onnx.Relu(%z) : (tensor<8xi8, #b>) -> tensor<8xi8, #b>
  %y = onnx.Add(%s, %k) {scope = "layer.1"} : (tensor<8xi8, #b>, tensor<8xi8, #b>) -> tensor<8xi8, #b>
  func.return %y : tensor<8xi8, #b>
}
"""


def simulated_send(asynchronous: bool) -> Simulation:
    """Relu takes 5 s on the first device and 1 s on the second, the send 2 + 8 s."""
    kinds = [
        KindOp(
            name,
            [device],
            memory=100,
            memory_bandwidth=1e300,
            peak_flops={"default": 1e300},
            launch_latency=launch,
        )
        for name, device, launch in (("slow", 0, 5.0), ("fast", 1, 1.0))
    ]
    on = ClusterOp("c", kinds, [LinkOp("l", 2, bandwidth=1.0, latency=2.0)])
    attribute = "{dist.asynchronous}" if asynchronous else ""
    return simulate_text(SEND.replace("ASYNC", attribute), on)


def test_waiting_for_a_send_is_communication_while_it_is_under_way():
    """The second device computes for 1 s; the value leaves at 5 s and comes at 15 s."""
    result = simulated_send(asynchronous=True)
    assert result.step_time_s == 16
    assert result.idle_s == [11, 14]
    assert result.communication_s == [0, 0]
    assert result.exposed_communication_s == [0, 10]
    assert result.waiting_s == [11, 4]
    assert result.exposed_communication == 10 / 32
    assert result.bubble_fraction == 15 / 32
    second = TimeReport.of(result).groups[1]
    second_of_send = second.spent[Cause("", "dist.send")]
    assert second_of_send.exposed_communication == 10 * TICKS_PER_SECOND
    assert second_of_send.waiting == 4 * TICKS_PER_SECOND
    assert second.spent[Cause("layer.*", "onnx.Add")].waiting == 0


def test_a_blocking_send_is_communication_on_both_sides():
    result = simulated_send(asynchronous=False)
    assert result.communication_s == result.exposed_communication_s == [10, 10]
    assert result.waiting_s == [2, 5]
    first, second = TimeReport.of(result).groups
    assert first.spent[Cause("", "end of the step")].waiting == 2 * TICKS_PER_SECOND
    assert second.spent[Cause("", "dist.send")].waiting == 5 * TICKS_PER_SECOND
