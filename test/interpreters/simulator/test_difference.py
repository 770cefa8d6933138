"""Why one program is slower than another: the parts add up to the difference."""

import json
from itertools import pairwise

import pytest
from support.cost_programs import MACHINES, cluster, distributed, parse
from support.thoroughness import sampled
from support.training_programs import training_gpt, training_mlp
from xdsl.dialects.builtin import ModuleOp

from distir.interpreters.simulator import Difference, simulate
from distir.interpreters.simulator.reports.time_report import (
    TICKS_PER_SECOND,
    Cause,
    Spent,
)


def difference(first: ModuleOp, second: ModuleOp) -> Difference:
    return Difference.of(simulate(first), simulate(second))


PAIRS = [
    ({}, {"d": 4}),
    ({"d": 4}, {"t": 4}),
    ({"d": 2, "t": 2}, {"d": 2, "t": 2, "zero": 3}),
    ({"d": 2, "checkpoint": "full"}, {"d": 2}),
    ({"p": 2, "k": 4}, {"p": 2, "k": 4, "blocking_sends": True}),
    ({"p": 2, "k": 2, "d": 2}, {"t": 4, "sequence_parallel": True}),
]


@pytest.mark.parametrize(("first", "second"), sampled(PAIRS, 2), ids=str)
def test_the_parts_add_up_exactly(first, second):
    step = training_gpt()
    before = simulate(distributed(step, MACHINES, **first))
    after = simulate(distributed(step, MACHINES, **second))
    found = Difference.of(before, after)
    total = Spent()
    for _, change in found.causes:
        total.add(change)
    assert total == found.total
    assert total.total == found.step == found.second.end - found.first.end != 0
    for side, simulation in ((found.first, before), (found.second, after)):
        assert side.total.total == side.end
        seconds = side.end / TICKS_PER_SECOND
        assert seconds == pytest.approx(simulation.step_time_s, rel=1e-9)
        assert side.peak == max(simulation.peak_memory_bytes)
        # Nobody waits for others less than the devices it speaks of.
        waiting = side.total.waiting / TICKS_PER_SECOND
        assert waiting == pytest.approx(min(simulation.waiting_s), abs=1e-12)
    highest = max(after.peak_memory_bytes) - max(before.peak_memory_bytes)
    assert sum(found.memory.values()) == highest


def test_the_largest_causes_come_first():
    step = training_gpt()
    found = difference(
        distributed(step, MACHINES, d=4), distributed(step, MACHINES, t=4)
    )
    magnitudes = [change.magnitude for _, change in found.causes]
    assert all(a >= b for a, b in pairwise(magnitudes))
    assert all(magnitudes)


def test_a_program_does_not_differ_from_itself():
    found = difference(training_mlp_on(4), training_mlp_on(4))
    assert found.step == 0
    assert found.total == Spent()
    assert found.causes == []
    assert set(found.memory.values()) == {0}


def training_mlp_on(d: int) -> ModuleOp:
    return distributed(training_mlp(), MACHINES, d=d)


def program(op: str) -> ModuleOp:
    return parse(f"""
        device.mesh @m on @c <t = 2> [0 to 2]
        #x = #dist.layout<@m>
        #p = #dist.layout<@m, partial sum {{t}}>
        func.func @main(%x: tensor<10xi8, #p>) -> tensor<10xi8, #x> {{
          %y = collective.all_reduce %x over [t] {{scope = "layer.0"}} : tensor<10xi8, #p> -> tensor<10xi8, #x>
          {op}
          func.return %z : tensor<10xi8, #x>
        }}""")


def test_each_change_has_its_cause():
    """An all-reduce of 10 bytes takes 2 x 5 s at 1 byte a second; Relu a launch of 3 s."""
    relu = '%z = onnx.Relu(%y) {scope = "layer.1"} : (tensor<10xi8, #x>) -> tensor<10xi8, #x>'
    again = (
        '%p = "test.op"(%y) : (tensor<10xi8, #x>) -> tensor<10xi8, #p>\n'
        '%z = collective.all_reduce %p over [t] {scope = "layer.1"} : '
        "tensor<10xi8, #p> -> tensor<10xi8, #x>"
    )
    on = cluster(2, launch=3.0)
    found = Difference.of(simulate(program(relu), on), simulate(program(again), on))
    seconds = TICKS_PER_SECOND
    assert dict(found.causes) == {
        Cause("layer.*", "collective.all_reduce"): Spent(0, 10 * seconds, 0),
        Cause("layer.*", "onnx.Relu"): Spent(-3 * seconds, 0, 0),
        Cause("", "test.op"): Spent(3 * seconds, 0, 0),
    }
    assert found.step == 10 * seconds
    # Both hold %x, %y and what is computed from it first.
    assert set(found.memory.values()) == {0}


def test_json_adds_up_too():
    found = difference(training_mlp_on(1), training_mlp_on(2))
    data = json.loads(json.dumps(found.to_json()))
    parts = ("compute_fs", "exposed_communication_fs", "waiting_fs")
    assert sum(data[part] for part in parts) == data["step_fs"]
    for part in parts:
        assert sum(cause[part] for cause in data["causes"]) == data[part]
        assert data["second"][part] - data["first"][part] == data[part]
    kinds = data["memory_by_kind"]
    assert sum(kinds.values()) == data["peak_memory_bytes"]
    assert data["second"]["memory_by_kind"].keys() == kinds.keys()
