"""Clusters whose devices or links differ: hand-computed, device by device."""

import pytest
from support.cost_programs import cluster, distributed, parse, simulate_text, uneven
from support.training_programs import training_mlp

from distir.dialects.device import ClusterOp, KindOp, LinkOp, RouteOp
from distir.hardware import grow
from distir.interpreters.simulator import Simulation, simulate


def kind(name: str, devices: list[int], *, rate: float, launch: float = 0.0) -> KindOp:
    return KindOp(
        name,
        devices,
        memory=10**6,
        memory_bandwidth=1e300,
        peak_flops={"f16": 2 * rate, "default": rate},
        launch_latency=launch,
    )


def with_route(*, bandwidth: float, latency: float = 0.0) -> ClusterOp:
    """Four devices at 8 bytes/s, but for one link: between devices 1 and 2."""
    return ClusterOp(
        "c",
        [kind("unit", [0, 1, 2, 3], rate=1.0, launch=1.0)],
        [LinkOp("wire", 4, bandwidth=8.0, latency=0.0)],
        [RouteOp("cable", [1], [2], bandwidth=bandwidth, latency=latency)],
    )


def both_ways(text: str, on: ClusterOp) -> Simulation:
    result = simulate_text(text, on)
    flat = simulate(parse(text), on, flat=True)
    assert result.step_time_s == pytest.approx(flat.step_time_s, rel=1e-12)
    assert result.idle_s == pytest.approx(flat.idle_s, abs=1e-12)
    return result


def test_kinds_compute_at_their_own_rates():
    """A product of 2 x 4 x 8 x 8 = 512 operations on each device, in f32 and in f16."""
    on = ClusterOp(
        "c",
        [kind("fast", [0, 3], rate=128.0), kind("slow", [1, 2], rate=32.0, launch=0.5)],
        [LinkOp("wire", 4, bandwidth=1.0, latency=0.0)],
    )
    text = """
    device.mesh @m on @c <d = 4> [0 to 4]
    #X = #dist.layout<@m, [{d}, {}]>
    #W = #dist.layout<@m>
    func.func @main(%x: tensor<16x8xf32, #X>, %w: tensor<8x8xf32, #W>) -> tensor<16x8xf32, #X> {
      %y = onnx.MatMul(%x, %w) : (tensor<16x8xf32, #X>, tensor<8x8xf32, #W>) -> tensor<16x8xf32, #X>
      func.return %y : tensor<16x8xf32, #X>
    }"""
    result = both_ways(text, on)
    assert result.compute_s == [4.0, 16.5, 16.5, 4.0]
    assert result.idle_s == [12.5, 0.0, 0.0, 12.5]
    result = both_ways(text.replace("f32", "f16"), on)
    assert result.compute_s == [2.0, 8.5, 8.5, 2.0]
    assert result.seconds_at_peak == [2.0, 8.0, 8.0, 2.0]


SENDS = """
device.mesh @a on @c <d = 2> [0, 1]
device.mesh @b on @c <d = 2> [3, 2]
#A = #dist.layout<@a, [{d}]>
#B = #dist.layout<@b, [{d}]>
func.func @main(%x: tensor<4xf32, #A>) -> tensor<4xf32, #B> {
  %y = dist.send %x : tensor<4xf32, #A> -> tensor<4xf32, #B>
  %z = onnx.Relu(%y) : (tensor<4xf32, #B>) -> tensor<4xf32, #B>
  func.return %z : tensor<4xf32, #B>
}"""


def test_a_slow_link_holds_up_its_pair_alone():
    """Devices 0 and 3 send 8 bytes in 1 s, devices 1 and 2 in 0.5 + 8 / 2 s."""
    result = both_ways(SENDS, with_route(bandwidth=2.0, latency=0.5))
    assert result.devices == [0, 1, 2, 3]
    assert result.communication_s == [1.0, 4.5, 4.5, 1.0]
    assert result.idle_s == [4.5, 1.0, 0.0, 3.5]
    asynchronous = SENDS.replace("%x :", "%x {dist.asynchronous} :")
    result = both_ways(asynchronous, with_route(bandwidth=2.0, latency=0.5))
    assert result.step_time_s == 5.5
    assert result.transit_s == [0.0, 0.0, 4.5, 1.0]


GATHERS = """
device.mesh @m on @c <a = 2, b = 2> [DEVICES]
#X = #dist.layout<@m, [{a, b}]>
#Y = #dist.layout<@m, [{a}]>
func.func @main(%x: tensor<8xf32, #X>) -> tensor<8xf32, #Y> {
  %y = collective.all_gather %x over [b] : tensor<8xf32, #X> -> tensor<8xf32, #Y>
  func.return %y : tensor<8xf32, #Y>
}"""


def test_a_slow_link_slows_the_ring_that_takes_it():
    """Each device of a pair gets 8 bytes: in 1 s, but 4 s over the cable."""
    on = with_route(bandwidth=2.0)
    apart = both_ways(GATHERS.replace("DEVICES", "0 to 4"), on)
    assert apart.communication_s == [1.0] * 4
    within = both_ways(GATHERS.replace("DEVICES", "0, 3, 1, 2"), on)
    assert within.communication_s == [1.0, 4.0, 4.0, 1.0]
    everything = GATHERS.replace("DEVICES", "0 to 4").replace("over [b]", "over [a, b]")
    everything = everything.replace("[{a}]", "[]")
    # 3 steps around the ring, of 8 bytes each at 2 bytes/s.
    assert both_ways(everything, on).communication_s == [12.0] * 4


def test_a_faster_link_does_not_speed_up_a_ring():
    ring = GATHERS.replace("DEVICES", "0, 3, 1, 2")
    assert both_ways(ring, with_route(bandwidth=99.0)).communication_s == [1.0] * 4
    result = both_ways(SENDS, with_route(bandwidth=16.0))
    assert result.communication_s == [1.0, 0.5, 0.5, 1.0]


def test_a_slow_cable_between_nodes():
    """Only groups over both nodes are slowed, and only between the nodes."""
    on = ClusterOp(
        "c",
        [kind("unit", list(range(4)), rate=1.0)],
        [
            LinkOp("inside", 2, bandwidth=8.0, latency=0.0),
            LinkOp("outside", 4, bandwidth=4.0, latency=0.0),
        ],
        [RouteOp("cable", [0, 1], [2, 3], bandwidth=1.0, latency=0.0)],
    )
    inside = both_ways(GATHERS.replace("DEVICES", "0 to 4"), on)
    assert inside.communication_s == [1.0] * 4
    across = both_ways(GATHERS.replace("DEVICES", "0, 2, 1, 3"), on)
    assert across.communication_s == [8.0] * 4


def test_a_slow_cable_beside_shared_adapters():
    """A node's two senders share 4 bytes/s; the cable of one of them has only 1."""
    on = ClusterOp(
        "c",
        [kind("unit", list(range(4)), rate=1.0, launch=1.0)],
        [
            LinkOp("inside", 2, bandwidth=8.0, latency=0.0),
            LinkOp("outside", 4, bandwidth=4.0, latency=0.0, block_bandwidth=4.0),
        ],
        [RouteOp("cable", [1], [2], bandwidth=1.0, latency=0.0)],
    )
    assert both_ways(SENDS, on).communication_s == [4.0, 8.0, 8.0, 4.0]


def test_a_cluster_grows_with_its_routes():
    on = ClusterOp(
        "c",
        [kind("unit", [0, 1], rate=1.0)],
        [
            LinkOp("inside", 2, bandwidth=8.0, latency=0.0),
            LinkOp("outside", 2, bandwidth=4.0, latency=0.0),
        ],
        [RouteOp("cable", [0], [1], bandwidth=1.0, latency=0.0)],
    )
    grown = grow(on, 4)
    grown.verify()
    assert [route.sym_name.data for route in grown.routes] == ["cable"]


def test_one_slow_device_in_a_training_step():
    """With asynchronous collectives too, the others wait for it and it for nobody."""
    for overlap in (False, True):
        module = distributed(training_mlp(), uneven(), d=4, overlap=overlap)
        result, flat = simulate(module), simulate(module, flat=True)
        assert result == flat
        assert result.compute_s[2] > 2 * result.compute_s[0]
        assert result.waiting_s[2] < min(result.waiting_s[i] for i in (0, 1, 3))


def test_equal_kinds_under_two_names_are_as_one():
    """The same cluster described as one kind or as two."""
    text = SENDS
    one = cluster(4, levels=((4, 8.0, 0.0),), launch=1.0)
    two = ClusterOp(
        "c",
        [
            kind("left", [0, 2], rate=1.0, launch=1.0),
            kind("right", [1, 3], rate=1.0, launch=1.0),
        ],
        [LinkOp("wire", 4, bandwidth=8.0, latency=0.0)],
    )
    assert simulate_text(text, one).idle_s == simulate_text(text, two).idle_s
