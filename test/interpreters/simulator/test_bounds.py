"""Properties that hold for every program (closed form O2; Graham 1969)."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cost_programs import cluster, parse
from xdsl.dialects.builtin import FloatAttr

from distir.interpreters.simulator import Cost, CostContext, cost_function, simulate

DEVICES = 4


@cost_function("test.pureop")
def declared_seconds(context: CostContext) -> Cost:
    """The cost of a test op is what its attribute says: a registration from outside."""
    seconds = context.op.attributes["seconds"]
    assert isinstance(seconds, FloatAttr)
    return Cost(seconds.value.data)


@dataclass
class Node:
    """An op on one device: its operands by index of earlier ones, and its seconds."""

    device: int
    operands: list[int]
    seconds: float


@st.composite
def programs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for i in range(draw(st.integers(1, 25))):
        operands = draw(st.lists(st.integers(0, i - 1), max_size=2)) if i else []
        seconds = float(draw(st.integers(0, 9)))
        nodes.append(Node(draw(st.integers(0, DEVICES - 1)), operands, seconds))
    return nodes


def text(nodes: list[Node], renamed: list[int], scale: float = 1.0) -> str:
    """The program; a value used on another device is sent there first."""
    lines = [f"device.mesh @m{d} on @c <> [{renamed[d]}]" for d in range(DEVICES)]
    lines.append("func.func @main() {")

    def typed(device: int) -> str:
        return f"tensor<1xi8, #dist.layout<@m{device}>>"

    for i, node in enumerate(nodes):
        names: list[str] = []
        for n, operand in enumerate(node.operands):
            source = nodes[operand].device
            names.append(f"%v{operand}")
            if source != node.device:
                names[-1] = f"%s{i}x{n}"
                lines.append(
                    f"{names[-1]} = dist.send %v{operand} : "
                    f"{typed(source)} -> {typed(node.device)}"
                )
        types = ", ".join([typed(node.device)] * len(names))
        lines.append(
            f'%v{i} = "test.pureop"({", ".join(names)}) '
            f"{{seconds = {node.seconds * scale:.1f} : f64}} "
            f": ({types}) -> {typed(node.device)}"
        )
    return "\n".join([*lines, "func.return", "}"])


SEND_SECONDS = 2.0


def run(nodes: list[Node], renamed: list[int] | None = None, scale: float = 1.0):
    on = cluster(DEVICES, levels=((DEVICES, 1e300, SEND_SECONDS * scale),))
    return simulate(parse(text(nodes, renamed or list(range(DEVICES)), scale)), on)


def critical_path(nodes: list[Node]) -> float:
    ends: list[float] = []
    for node in nodes:
        ready = [
            ends[o] + (SEND_SECONDS if nodes[o].device != node.device else 0.0)
            for o in node.operands
        ]
        ends.append(max(ready, default=0.0) + node.seconds)
    return max(ends)


@given(programs())
def test_makespan_lies_between_its_bounds(nodes: list[Node]):
    result = run(nodes)
    sends = sum(nodes[o].device != n.device for n in nodes for o in n.operands)
    work = sum(n.seconds for n in nodes) + SEND_SECONDS * sends
    busy = [
        a + b for a, b in zip(result.compute_s, result.communication_s, strict=True)
    ]
    assert max(critical_path(nodes), *busy) <= result.step_time_s <= work
    assert sum(result.compute_s) == sum(n.seconds for n in nodes)
    assert sum(result.communication_s) == 2 * SEND_SECONDS * sends
    assert result.ops == len(nodes) + sends


@given(programs(), st.permutations(range(DEVICES)), st.integers(1, 8))
def test_renaming_and_scaling(nodes: list[Node], renamed: list[int], scale: int):
    result = run(nodes)
    other = run(nodes, renamed, scale)
    assert other.step_time_s == scale * result.step_time_s
    by_id = dict(zip(result.devices, result.peak_memory_bytes, strict=True))
    other_by_id = dict(zip(other.devices, other.peak_memory_bytes, strict=True))
    assert {renamed[d]: peak for d, peak in by_id.items()} == other_by_id


@given(programs(), st.data())
def test_free_ops_change_nothing(nodes: list[Node], data: st.DataObject):
    result = run(nodes)
    extra = [Node(data.draw(st.integers(0, DEVICES - 1)), [], 0.0) for _ in range(3)]
    assert run([*extra, *_shifted(nodes, 3)]).step_time_s == result.step_time_s


def _shifted(nodes: list[Node], by: int) -> list[Node]:
    return [Node(n.device, [o + by for o in n.operands], n.seconds) for n in nodes]


def test_the_bounds_are_met():
    chain = [Node(0, [], 3.0), Node(1, [0], 4.0)]
    assert run(chain).step_time_s == critical_path(chain) == 9.0
    apart = [Node(0, [], 3.0), Node(1, [], 4.0)]
    assert run(apart).step_time_s == pytest.approx(4.0)
