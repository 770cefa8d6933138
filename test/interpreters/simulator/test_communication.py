"""Groups over levels of links, and collectives without a closed form of their own."""

import pytest
from support.cost_programs import cluster, simulate_text

from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.interpreters.simulator.costs.communication import (
    all_reduce_seconds,
    all_to_all_seconds,
    limited_exchange_seconds,
    shared,
    topology,
    tree_all_reduce_seconds,
)
from distir.interpreters.simulator.costs.hardware import Hardware


def hardware(*levels: tuple[int, float, float]) -> Hardware:
    return Hardware.of(cluster(levels[-1][0], levels=levels))


NODES = hardware((4, 8.0, 1.0), (16, 2.0, 3.0))


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ([3], []),
        ([0, 1, 2, 3], [("level0", 4, 1)]),
        ([0, 2], [("level0", 2, 1)]),
        ([0, 4, 8, 12], [("level1", 4, 1)]),
        ([0, 1, 4, 5], [("level0", 2, 1), ("level1", 2, 2)]),
        (list(range(16)), [("level0", 4, 1), ("level1", 4, 4)]),
        ([0, 1, 4], [("level1", 3, 1)]),  # uneven: one ring over the outer level
        ([1, 2, 3, 4], [("level1", 4, 1)]),
    ],
)
def test_topology(group, expected):
    found = [(s.level.name, s.blocks, s.inner) for s in topology(group, NODES)]
    assert found == expected


def test_three_levels():
    levels = hardware((2, 8.0, 0.0), (4, 4.0, 0.0), (8, 1.0, 0.0))
    stages = topology(range(8), levels)
    assert [(s.blocks, s.inner) for s in stages] == [(2, 1), (2, 2), (2, 4)]
    # half, a quarter and an eighth of the buffer cross the levels, twice
    expected = 2 * (4.0 / 8 + 2.0 / 4 + 1.0 / 1)
    assert all_reduce_seconds(8.0, stages) == pytest.approx(expected)


def test_all_to_all_over_levels():
    stages = topology(range(16), NODES)
    # 3 peers inside, 12 outside, a sixteenth of 32 bytes each
    assert all_to_all_seconds(32.0, stages) == 3 * (1 + 2 / 8) + 12 * (3 + 2 / 2)


@pytest.mark.parametrize(
    ("limit", "size", "expected"),
    [
        # 4 nodes of 4 devices hold a group of experts each. A token goes to 2 nodes, of
        # which a quarter are its own: 3/4 x 2/8 of the bytes, and 3 messages.
        ((4, 2, 8), 320.0, 3 * 3 + 3 / 4 * 2 / 8 * 320 / 2),
        # 8 groups are 2 to a node, so that 3 of them are on 3 nodes at most
        ((8, 3, 8), 320.0, 3 * 3 + 3 / 4 * 3 / 8 * 320 / 2),
        # a group is on 2 nodes
        ((2, 1, 8), 320.0, 3 * 3 + 3 / 4 * 2 / 8 * 320 / 2),
        # of 2 experts there are 2 copies, whatever the groups
        ((4, 4, 2), 320.0, 3 * 3 + 3 / 4 * 320 / 2),
        # all copies take the inner links, which are slower where few go between nodes
        ((4, 1, 64), 3200.0, 3 * (1 + 800 / 8)),
    ],
)
def test_exchange_of_tokens_with_a_limit(limit, size, expected):
    stages = topology(range(16), NODES)
    assert limited_exchange_seconds(limit, size, stages) == pytest.approx(expected)
    inside = topology(range(4), NODES)
    within = all_to_all_seconds(size, inside)
    assert limited_exchange_seconds(limit, size, inside) == within


def test_in_fabric_reduction():
    kind = KindOp(
        "k", range(8), memory=1, memory_bandwidth=1.0, peak_flops={"default": 1.0}
    )
    link = LinkOp("l", 8, bandwidth=4.0, latency=1.0, in_fabric_reduction=True)
    stages = topology(range(8), Hardware.of(ClusterOp("c", [kind], [link])))
    assert all_reduce_seconds(40.0, stages) == 2 * 1.0 + 40.0 / 4.0


def run(body: str, levels=((4, 2.0, 1.0),)):
    return simulate_text(
        f"""
        device.mesh @m on @c <t = 4> [0 to 4]
        device.mesh @grid on @c <a = 2, b = 2> [0 to 4]
        device.mesh @root on @c <> [1]
        #split = #dist.layout<@m, [{{t}}]>
        #whole = #dist.layout<@m>
        #one = #dist.layout<@root>
        #pa = #dist.layout<@grid, [], partial sum {{a}}>
        #pb = #dist.layout<@grid, [], partial sum {{b}}>
        #grid = #dist.layout<@grid>
        {body}""",
        cluster(4, levels=levels),
    )


def one_op(op: str, before: str, after: str):
    types = [f"tensor<8xi8, #{x}>" for x in (before, after)]
    return run(
        f"func.func @main(%x: {types[0]}) -> {types[1]} {{\n"
        f"%y = {op} : {types[0]} -> {types[1]}\nfunc.return %y : {types[1]}\n}}"
    )


def test_scatter_and_gather():
    result = one_op("collective.scatter %x over [t]", "one", "split")
    assert result.step_time_s == 3 * (1 + 2 / 2)
    assert result.communication_bytes == [0, 6, 0, 0]
    result = one_op("collective.gather %x over [t]", "split", "one")
    assert result.step_time_s == 3 * (1 + 2 / 2)
    assert result.communication_bytes == [2, 0, 2, 2]


def test_permute():
    result = one_op(
        "collective.permute %x over [t] {shift = 1 : i64}", "split", "split"
    )
    assert result.step_time_s == 1 + 2 / 2
    assert result.communication_bytes == [2] * 4


def test_slice_sends_nothing():
    result = one_op("collective.slice %x over [t]", "whole", "split")
    assert result.communication_bytes == [0] * 4
    assert result.communication_s == [0] * 4


def test_an_axis_crosses_the_levels_between_its_devices():
    # axis b joins neighbours, axis a devices two apart
    for layout, axis, expected in (
        ("pa", "a", 2 * (1 + 4 / 2)),  # over the outer level
        ("pb", "b", 2 * (1 + 4 / 4)),
    ):
        types = [f"tensor<8xi8, #{x}>" for x in (layout, "grid")]
        result = run(
            f"func.func @main(%x: {types[0]}) -> {types[1]} {{\n"
            f"%y = collective.all_reduce %x over [{axis}] : {types[0]} -> {types[1]}\n"
            f"func.return %y : {types[1]}\n}}",
            levels=((2, 4.0, 1.0), (4, 2.0, 1.0)),
        )
        assert result.step_time_s == expected


def test_sends_between_overlapping_meshes_follow_each_other():
    result = simulate_text(
        """
        device.mesh @p on @c <t = 2> [0, 1]
        device.mesh @q on @c <t = 2> [1, 2]
        #p = #dist.layout<@p>
        #q = #dist.layout<@q>
        func.func @main(%x: tensor<2xi8, #p>) -> tensor<2xi8, #q> {
          %y = dist.send %x : tensor<2xi8, #p> -> tensor<2xi8, #q>
          func.return %y : tensor<2xi8, #q>
        }""",
        cluster(3, levels=((3, 2.0, 1.0),)),
    )
    assert result.communication_s == [2, 4, 2]
    assert result.step_time_s == 4
    assert result.communication_bytes == [2, 2, 0]


def test_c6_trees_have_logarithmic_latency():
    """C6: double binary trees, 2 log2 n messages in a row instead of 2 (n - 1)."""
    stages = topology(range(64), hardware((64, 1e300, 1e-5)))
    assert tree_all_reduce_seconds(1.0, stages) == pytest.approx(0.00012)
    assert all_reduce_seconds(1.0, stages) == pytest.approx(0.00126)


def test_groups_share_the_adapters_of_a_node():
    kind = KindOp(
        "k", range(8), memory=1, memory_bandwidth=1.0, peak_flops={"default": 1.0}
    )
    links = [
        LinkOp("inside", 4, bandwidth=8.0, latency=0.0),
        LinkOp("network", 8, bandwidth=2.0, latency=0.0, block_bandwidth=4.0),
    ]
    nodes = Hardware.of(ClusterOp("c", [kind], links))

    def bandwidths(groups):
        found = shared(groups, [topology(g, nodes) for g in groups], nodes)
        return [stages[-1].bandwidth for stages in found]

    assert bandwidths([[0, 4]]) == [2.0]  # its own link is the limit
    assert bandwidths([[0, 4], [1, 5]]) == [2.0, 2.0]
    assert bandwidths([[i, i + 4] for i in range(4)]) == [1.0] * 4
    assert bandwidths([[0, 1, 2, 3]]) == [8.0]  # nothing leaves the node
    assert bandwidths([list(range(8))]) == [1.0]
