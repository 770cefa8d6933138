"""What is in memory at the peak: it adds up, and every value has its kind."""

from itertools import product

import pytest
from support.cost_programs import (
    MACHINES,
    STRATEGIES,
    cluster,
    distributed,
    parse,
    uneven,
    with_workspace,
)
from support.thoroughness import sampled
from support.training_programs import training_gpt, training_mlp

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.dialects.dist import layout_of
from distir.interpreters.simulator import (
    MemoryReport,
    simulate,
)
from distir.interpreters.simulator.reports.memory_report import GroupMemory


def report_of(text: str, on: ClusterOp | None = None) -> GroupMemory:
    (memory,) = MemoryReport.of(simulate(parse(text), on or cluster(1))).groups
    return memory


@pytest.mark.parametrize(
    ("options", "flat"), sampled(product(STRATEGIES, (False, True)), 5)
)
def test_kinds_scopes_and_values_add_up_to_the_peak(options, flat):
    result = simulate(distributed(training_gpt(), MACHINES, **options), flat=flat)
    report = MemoryReport.of(result)
    devices = [d for memory in report.groups for d in memory.group.devices]
    assert sorted(devices) == result.devices
    for memory in report.groups:
        for device in memory.group.devices:
            index = result.devices.index(device)
            assert memory.peak == result.peak_memory_bytes[index]
        assert sum(memory.by_kind.values()) == memory.peak
        assert sum(size for _, size in memory.by_scope) == memory.peak
        assert memory.curve.sum(axis=1).max() == memory.peak
        assert 0 <= memory.peak_time <= result.step_time_s


def test_a_summarised_simulation_and_a_flat_one_have_the_same_report():
    module = distributed(training_mlp(), MACHINES, d=2, p=2, k=2, zero=1)
    short, flat = (MemoryReport.of(simulate(module, flat=f)) for f in (False, True))
    assert [g.by_kind for g in short.groups] == [g.by_kind for g in flat.groups]
    assert [g.peak_op for g in short.groups] == [g.peak_op for g in flat.groups]


def test_devices_of_different_kinds_have_reports_of_their_own():
    result = simulate(distributed(training_mlp(), uneven(), d=4))
    report = MemoryReport.of(result)
    assert [g.group.devices for g in report.groups] == [(0, 1, 3), (2,)]
    for memory in report.groups:
        assert sum(memory.by_kind.values()) == memory.peak


def test_a_training_step_has_every_kind():
    (memory,) = MemoryReport.of(simulate(training_mlp(batch=1), cluster(1))).groups
    parameters = 2 * (8 * 8 + 8)
    found = memory.by_kind
    assert found["parameters"] == 4 * parameters
    assert found["optimizer state"] == 2 * 4 * parameters + 8  # and a step counter
    assert found["inputs"] == 2 * 4 * 8  # x and its label
    assert 0 < found["gradients"] <= 4 * parameters
    assert found["communication buffers"] == 0


ROLES = """
func.func @main(%w: tensor<100xi8> {dist.role = "parameter", dist.name = "layer.0.up.weight"},
                %m: tensor<50xi8> {dist.role = "state", dist.name = "layer.0.up.weight.momentum"},
                %c: tensor<20xi8> {dist.role = "constant", dist.name = "mask"},
                %x: tensor<10xi8> {dist.role = "input", dist.name = "x"}) -> tensor<1xi8> {
  %h = "test.op"(%w, %m, %c, %x) {scope = "layer.0.up"} : (tensor<100xi8>, tensor<50xi8>, tensor<20xi8>, tensor<10xi8>) -> tensor<1000xi8>
  %k = onnx.Constant() {value = dense<1> : tensor<4xi8>} : () -> tensor<4xi8>
  %y = "test.op"(%h, %k) {scope = "layer.1.up"} : (tensor<1000xi8>, tensor<4xi8>) -> tensor<1xi8>
  func.return %y : tensor<1xi8>
}
"""


def test_arguments_have_the_kind_of_their_role_and_the_module_of_their_name():
    memory = report_of(ROLES)
    assert memory.by_kind == {
        "parameters": 100,
        "optimizer state": 50,
        "gradients": 0,
        "activations": 1001,
        "communication buffers": 0,
        "workspace": 0,
        "inputs": 10,
        "caches": 0,
        "constants": 24,
    }
    # both layers are one module: weight, momentum, %h and %y
    assert memory.by_scope[0] == ("layer.*.up", 1151)
    assert memory.peak_op == "test.op layer.1.up"
    names = [v["name"] for v in memory.to_json()["largest"]]
    assert names[:2] == ["test.op %h", "layer.0.up.weight"]


def test_workspace_is_in_it():
    with with_workspace(1000) as text:
        memory = report_of(text)
    assert memory.by_kind["workspace"] == 1000
    assert memory.peak == 64 + 4 + 1000
    assert ("det", 1004) in memory.by_scope


def test_what_is_received_is_a_communication_buffer():
    text = """
    device.mesh @m on @c <d = 2> [0 to 2]
    #split = #dist.layout<@m, [{d}]>
    #whole = #dist.layout<@m>
    func.func @main(%x: tensor<8xf32, #split>) -> tensor<8xf32, #whole> {
      %y = collective.all_gather %x over [d] : tensor<8xf32, #split> -> tensor<8xf32, #whole>
      func.return %y : tensor<8xf32, #whole>
    }"""
    found = report_of(text, cluster(2)).by_kind
    assert (found["inputs"], found["communication buffers"]) == (16, 32)


def test_gradients_are_found_across_calls_sums_and_reductions():
    text = """
    device.mesh @m on @c <d = 2> [0 to 2]
    #w = #dist.layout<@m>
    #g = #dist.layout<@m, partial sum {d}>
    func.func @gradient(%x: tensor<25xf32, #w>) -> (tensor<100xf32, #g>, tensor<7xf32, #w>) {
      %g = "test.op"(%x) : (tensor<25xf32, #w>) -> tensor<100xf32, #g>
      %a = "test.op"(%x) : (tensor<25xf32, #w>) -> tensor<7xf32, #w>
      func.return %g, %a : tensor<100xf32, #g>, tensor<7xf32, #w>
    }
    func.func @main(%w: tensor<100xf32, #w> {dist.role = "parameter", dist.name = "w"}, %x: tensor<25xf32, #w>)
        -> (tensor<100xf32, #w> {dist.updates = "w"}, tensor<7xf32, #w>) {
      %g1, %a1 = func.call @gradient(%x) : (tensor<25xf32, #w>) -> (tensor<100xf32, #g>, tensor<7xf32, #w>)
      %g2, %a2 = func.call @gradient(%x) : (tensor<25xf32, #w>) -> (tensor<100xf32, #g>, tensor<7xf32, #w>)
      %sum = onnx.Add(%g1, %g2) : (tensor<100xf32, #g>, tensor<100xf32, #g>) -> tensor<100xf32, #g>
      %reduced = collective.all_reduce %sum over [d] : tensor<100xf32, #g> -> tensor<100xf32, #w>
      %new = train.sgd %w, %reduced {learning_rate = 1.0 : f64, weight_decay = 0.0 : f64} : (tensor<100xf32, #w>, tensor<100xf32, #w>) -> tensor<100xf32, #w>
      func.return %new, %a2 : tensor<100xf32, #w>, tensor<7xf32, #w>
    }"""
    memory = report_of(text, cluster(2))
    assert memory.by_kind["parameters"] == 400
    assert memory.by_kind["inputs"] == 100
    assert memory.by_kind["activations"] == 28  # %a2; %a1 is unused
    # as soon as both terms are there: %sum overwrites one of them
    assert memory.by_kind["gradients"] == 2 * 400
    assert memory.by_kind["communication buffers"] == 0
    assert memory.peak_op == "test.op"


def test_gradients_stay_gradients_in_every_layout():
    """Only gradients of activations are summed over the data axis as something else."""
    options = {"d": 2, "t": 2, "p": 2, "k": 2, "zero": 1}
    module = distributed(training_gpt(), MACHINES, **options)
    for memory in MemoryReport.of(simulate(module)).groups:
        for held in memory.held:
            layout = None if held.value is None else layout_of(held.value)
            if layout is not None and "d" in layout.partial_axes and held.size > 4:
                assert held.kind == "gradients", held


# What would take less


def saved(kind: str, axis: str, **options: object) -> int:
    """What splitting a kind over an axis saves, of a training step so distributed."""
    (memory,) = MemoryReport.of(
        simulate(distributed(training_gpt(), MACHINES, **options))
    ).groups
    return sum(
        saving.saved
        for saving in memory.savings
        if saving.kind == kind and f"axis {axis}" in saving.why
    )


def test_zero_saves_what_the_report_says():
    def states(**options: object) -> int:
        module = distributed(training_gpt(), MACHINES, **options, buckets=False)
        result = simulate(module)
        return MemoryReport.of(result).groups[0].by_kind["optimizer state"]

    predicted = saved("optimizer state", "d", d=4)
    assert predicted == states(d=4) - states(d=4, zero=1) > 0
    assert saved("optimizer state", "d", d=4, zero=1) == 0
    assert saved("parameters", "d", d=4, zero=1) > 0
    assert saved("parameters", "d", d=4, zero=3) == 0


def test_what_layers_keep_is_what_checkpointing_frees():
    def kept(checkpoint: str) -> int:
        module = distributed(training_gpt(), MACHINES, checkpoint=checkpoint)
        (memory,) = MemoryReport.of(simulate(module)).groups
        assert sum(memory.by_kind.values()) == memory.peak
        return sum(s.saved for s in memory.savings if "--checkpoint" in s.how)

    assert kept("none") > 0
    assert kept("full") == 0


# Blocks


def blocks(sizes: tuple[int | None, ...]) -> ClusterOp:
    """A cluster with a kind for each device, with blocks of that many bytes."""
    kinds = [
        KindOp(
            f"kind{i}",
            [i],
            memory=10**9,
            memory_bandwidth=1e300,
            peak_flops={"default": 1e300},
            allocation_block=size,
        )
        for i, size in enumerate(sizes)
    ]
    return ClusterOp("c", kinds, [LinkOp("l", len(sizes), bandwidth=1.0, latency=0.0)])


def test_memory_is_handed_out_in_blocks():
    assert report_of(ROLES, blocks((None,))).peak == 100 + 50 + 20 + 10 + 4 + 1001
    memory = report_of(ROLES, blocks((512,)))
    assert memory.peak == 5 * 512 + 1024 + 512
    assert memory.by_kind["activations"] == 1024 + 512
    assert sum(memory.by_kind.values()) == memory.peak


def test_workspace_takes_whole_blocks_too():
    with with_workspace(1) as text:
        assert report_of(text, blocks((100,))).by_kind["workspace"] == 100


def test_each_device_has_its_own_blocks():
    module = training_mlp()
    plain = simulate(distributed(module, blocks((None, None)), d=2))
    mixed = simulate(distributed(module, blocks((None, 512)), d=2))
    assert mixed.peak_memory_bytes[0] == plain.peak_memory_bytes[0]
    assert mixed.peak_memory_bytes[1] % 512 == 0
    assert mixed.peak_memory_bytes[1] > plain.peak_memory_bytes[1]
    assert mixed.step_time_s == plain.step_time_s
    for memory in MemoryReport.of(mixed).groups:
        assert sum(memory.by_kind.values()) == memory.peak


def test_blocks_change_a_summarised_simulation_as_a_flat_one():
    kind = KindOp(
        "unit",
        range(4),
        memory=10**9,
        memory_bandwidth=1e11,
        peak_flops={"default": 1e12},
        allocation_block=512,
    )
    on = ClusterOp("c", [kind], [LinkOp("l", 4, bandwidth=1e9, latency=1e-6)])
    module = distributed(training_gpt(), on, d=2, p=2, k=2)
    short, flat = simulate(module), simulate(module, flat=True)
    assert short.peak_memory_bytes == flat.peak_memory_bytes
    assert all(peak % 512 == 0 for peak in short.peak_memory_bytes)


def test_libraries_and_communicators_take_memory_throughout():
    """
    Each stage communicates over "d", "t" and both (clipping), and with the other stage. One
    of the devices reserves more.
    """

    def on(library: int, communicator: int) -> ClusterOp:
        kinds = [
            KindOp(
                name,
                ids,
                memory=10**9,
                memory_bandwidth=1e300,
                peak_flops={"default": 1e300},
                library_memory=library * (i + 1),
                communicator_memory=communicator,
            )
            for i, (name, ids) in enumerate((("a", range(7)), ("b", [7])))
        ]
        return ClusterOp("c", kinds, [LinkOp("l", 8, bandwidth=1.0, latency=0.0)])

    options = {"d": 2, "t": 2, "p": 2, "k": 2}
    module = distributed(training_mlp(), on(0, 0), **options)
    axes = {
        (op.axis_names, layout.mesh)
        for op in module.walk()
        if isinstance(op, CollectiveOp) and (layout := layout_of(op.source))
    }
    groups = {m: sum(mesh == m for _, mesh in axes) + 1 for m in ("stage0", "stage1")}
    plain, more = simulate(module), simulate(module, on(1000, 10))
    added = [
        b - a
        for a, b in zip(plain.peak_memory_bytes, more.peak_memory_bytes, strict=True)
    ]
    first, second = 1000 + 10 * groups["stage0"], 1000 + 10 * groups["stage1"]
    assert added == [first] * 4 + [second] * 3 + [second + 1000]
    assert simulate(module, on(1000, 10), flat=True) == more
    for before, after in zip(
        MemoryReport.of(plain).groups, MemoryReport.of(more).groups, strict=False
    ):
        assert sum(after.by_kind.values()) == after.peak
        assert after.by_kind["workspace"] - before.by_kind["workspace"] >= 1000
        assert after.by_kind["communication buffers"] >= 20
