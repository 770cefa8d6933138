"""
Closed forms from the literature, by the ids under which the project keeps them:

- C1, C3, C5: ring collectives, nccl-tests doc/PERFORMANCE.md; Patarasuk & Yuan 2009.
- C2: bus bandwidth, nccl-tests.
- C4: hierarchical all-reduce (reduce-scatter inside, all-reduce outside, all-gather).
- F1: flops and traffic of a matrix product; F2: of a transformer layer, SC'21 appendix.
- I2: roofline, Williams et al. 2009.
- M6: liveness peak, DistIR section 3.3.
- PP5: a pipeline of unequal stages (Johnson 1954), forward only.
- PP6: synchronous sends, DistIR figures 2 and 3.
- V1: bytes of tensor parallelism in the forward pass, half of SC'21 section 3.2.
- V3: bytes of a pipeline's sends.
"""

from pathlib import Path

import pytest
from support.cost_programs import cluster, parse, simulate_text
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.dialects.device import ClusterOp
from distir.dialects.dist import SendOp
from distir.frontends.models.basic import build_gpt
from distir.interpreters.simulator import Simulation, simulate
from distir.passes.distribute import DistributePass
from distir.program import entry_function

EXACT = {"rel": 1e-12, "abs": 0.0}

WHOLE, SPLIT, PARTIAL = "<@m>", "<@m, [{t}]>", "<@m, partial sum {t}>"
LAYOUTS = {
    "all_reduce": (PARTIAL, WHOLE),
    "reduce_scatter": (PARTIAL, SPLIT),
    "all_gather": (SPLIT, WHOLE),
}


def collective(op: str, size: float, on: ClusterOp) -> Simulation:
    """One collective over all devices of a cluster on a buffer of `size` bytes."""
    before, after = LAYOUTS[op]
    n = on.size
    types = [f"tensor<{int(size) // 4}xf32, #dist.layout{x}>" for x in (before, after)]
    return simulate_text(
        f"""
        device.mesh @m on @c <t = {n}> [0 to {n}]
        func.func @main(%x: {types[0]}) -> {types[1]} {{
          %y = collective.{op} %x over [t] : {types[0]} -> {types[1]}
          func.return %y : {types[1]}
        }}""",
        on,
    )


@pytest.mark.parametrize(
    ("n", "size", "link", "alpha", "all_reduce", "half", "sent"),
    [
        (2, 1e9, 25e9, 0, 0.04, 0.02, 1e9),
        (8, 1e9, 300e9, 0, 0.005833333333333334, 0.002916666666666667, 1.75e9),
        (8, 256e6, 450e9, 5e-6, 0.0010655555555555555, 0.0005327777777777777, 448e6),
        (64, 2e9, 25e9, 1e-5, 0.15876, 0.07938, 3937500000),
        (1, 1e9, 1e9, 1e-6, 0.0, 0.0, 0.0),
    ],
)
def test_c1_ring_collectives(n, size, link, alpha, all_reduce, half, sent):
    on = cluster(n, levels=((n, link, alpha),))
    result = collective("all_reduce", size, on)
    assert result.step_time_s == pytest.approx(all_reduce, **EXACT)
    assert result.communication_bytes == [sent] * n
    assert result.communication_s == pytest.approx([all_reduce] * n, **EXACT)
    for op in ("reduce_scatter", "all_gather"):
        result = collective(op, size, on)
        assert result.step_time_s == pytest.approx(half, **EXACT)
        assert result.communication_bytes == [sent / 2] * n


def test_c2_bus_bandwidth_is_the_bandwidth_of_the_link():
    vectors = [
        ("all_reduce", 8, 1048576, 9.279e-05, 19.775924129755364e9),
        ("all_gather", 8, 1073741824, 0.0026, 361.35542153846154e9),
    ]
    for op, n, size, seconds, bus_bandwidth in vectors:
        result = collective(op, size, cluster(n, levels=((n, bus_bandwidth, 0.0),)))
        assert result.step_time_s == pytest.approx(seconds, rel=1e-9)


def test_c3_all_reduce_is_reduce_scatter_and_all_gather():
    on = cluster(8, levels=((8, 1e10, 1e-6),))
    whole, first, second = (
        collective(op, 1e9, on) for op in ("all_reduce", "reduce_scatter", "all_gather")
    )
    assert whole.step_time_s == pytest.approx(
        first.step_time_s + second.step_time_s, **EXACT
    )
    assert whole.communication_bytes == [
        a + b
        for a, b in zip(
            first.communication_bytes, second.communication_bytes, strict=True
        )
    ]


def test_c4_hierarchical_all_reduce():
    on = cluster(32, levels=((8, 300e9, 0.0), (32, 25e9, 0.0)))
    result = collective("all_reduce", 1e9, on)
    assert result.step_time_s == pytest.approx(0.013333333333333332, **EXACT)
    assert result.communication_bytes == [round(2 * 31 / 32 * 1e9)] * 32


def test_c5_broadcast_and_reduce():
    on = cluster(8, levels=((8, 25e9, 0.0),))
    for op, before, after in (
        ("broadcast", "<@root>", "<@m>"),
        ("reduce", "<@m, partial sum {t}>", "<@root>"),
    ):
        types = [f"tensor<250000000xf32, #dist.layout{x}>" for x in (before, after)]
        result = simulate_text(
            f"""
            device.mesh @m on @c <t = 8> [0 to 8]
            device.mesh @root on @c <> [0]
            func.func @main(%x: {types[0]}) -> {types[1]} {{
              %y = collective.{op} %x over [t] : {types[0]} -> {types[1]}
              func.return %y : {types[1]}
            }}""",
            on,
        )
        assert result.step_time_s == pytest.approx(0.04, **EXACT)


def test_c5_all_to_all():
    # 1e9 bytes on each device
    types = [
        f"tensor<8x250000000xf32, #dist.layout<@m, [{x}]>>"
        for x in ("{t}, {}", "{}, {t}")
    ]
    result = simulate_text(
        f"""
        device.mesh @m on @c <t = 8> [0 to 8]
        func.func @main(%x: {types[0]}) -> {types[1]} {{
          %y = collective.all_to_all %x over [t] : {types[0]} -> {types[1]}
          func.return %y : {types[1]}
        }}""",
        cluster(8, levels=((8, 50e9, 0.0),)),
    )
    assert result.step_time_s == pytest.approx(0.0175, **EXACT)
    assert result.communication_bytes == [875000000] * 8


def test_c5_no_bytes_cost_the_latency_only():
    result = collective("all_reduce", 0, cluster(4, levels=((4, 1e9, 0.5),)))
    assert result.step_time_s == 3.0
    assert result.communication_bytes == [0] * 4


MATMUL = """
func.func @main(%a: tensor<4096x4096xf16>, %b: tensor<4096x4096xf16>) -> tensor<4096x4096xf16> {
  %c = onnx.MatMul(%a, %b) : (tensor<4096x4096xf16>, tensor<4096x4096xf16>) -> tensor<4096x4096xf16>
  func.return %c : tensor<4096x4096xf16>
}
"""


def test_f1_flops_and_bytes_of_a_matrix_product():
    assert simulate_text(MATMUL, cluster(1)).step_time_s == 137438953472
    bound_by_memory = cluster(1, peak=1e300, bandwidth=1.0)
    result = simulate_text(MATMUL, bound_by_memory)
    assert result.step_time_s == 100663296
    assert result.peak_memory_bytes == [100663296]


def test_f2_flops_of_a_transformer_layer():
    def seconds(layers: int) -> float:
        module = build_gpt(layers, 12288, 96, 128, 1, 2048, dtype="f16")
        return simulate(module, cluster(1)).step_time_s

    assert seconds(2) - seconds(1) == pytest.approx(7627861917695.999, **EXACT)


def test_i2_roofline_changes_sides_at_the_ridge():
    bandwidth = 2039e9
    intensity = 137438953472 / 100663296
    memory_seconds = 100663296 / bandwidth
    for factor, expected in ((0.99, 1.0), (1.01, 1.01)):
        # a device whose ridge point lies just beside the op's intensity
        on = cluster(1, peak=bandwidth * intensity / factor, bandwidth=bandwidth)
        seconds = simulate_text(MATMUL, on).step_time_s
        assert seconds == pytest.approx(expected * memory_seconds, **EXACT)


def test_m6_liveness_peak():
    # a = f(x) [4 B]; b = g(a) [8 B]; c = h(b) [2 B]; weights 10 B
    result = simulate_text(
        """
        func.func @main(%w: tensor<10xi8>) -> tensor<2xi8> {
          %a = "test.op"(%w) : (tensor<10xi8>) -> tensor<4xi8>
          %b = "test.op"(%a) : (tensor<4xi8>) -> tensor<8xi8>
          %c = "test.op"(%b) : (tensor<8xi8>) -> tensor<2xi8>
          func.return %c : tensor<2xi8>
        }""",
        cluster(1),
    )
    assert result.peak_memory_bytes == [22]


def stages(seconds: list[int], micro_batches: int) -> str:
    """A forward pipeline whose stage r takes `seconds[r]` one-second ops."""
    lines = [f"device.mesh @s{r} on @c <> [{r}]" for r in range(len(seconds))]
    last = len(seconds) - 1

    def typed(stage: int) -> str:
        return f"tensor<1xi8, #dist.layout<@s{stage}>>"

    arguments = ", ".join(f"%x{m}: {typed(0)}" for m in range(micro_batches))
    results = ", ".join([typed(last)] * micro_batches)
    lines.append(f"func.func @main({arguments}) -> ({results}) {{")
    returned = [""] * micro_batches
    for m in range(micro_batches):
        value = f"%x{m}"
        for r, count in enumerate(seconds):
            if r:
                sent = f"%sent{m}_{r}"
                lines.append(
                    f"{sent} = dist.send {value} : {typed(r - 1)} -> {typed(r)}"
                )
                value = sent
            for i in range(count):
                name = f"%v{m}_{r}_{i}"
                lines.append(
                    f'{name} = "test.op"({value}) : ({typed(r)}) -> {typed(r)}'
                )
                value = name
        returned[m] = value
    lines.append(f"func.return {', '.join(returned)} : {results}")
    return "\n".join([*lines, "}"])


def test_pp5_pipeline_of_unequal_stages():
    on = cluster(3, levels=((3, 1e300, 0.0),), launch=1.0)
    assert simulate_text(stages([1, 3, 2], 5), on).step_time_s == 18


def test_v1_bytes_of_tensor_parallelism():
    def sent(layers: int) -> int:
        module = build_gpt(layers, 12288, 96, 128, 1, 2048, dtype="f16")
        on = cluster(8)
        module.body.block.insert_op_before(on, module.body.block.first_op)
        DistributePass(t=8).apply(Context(), module)
        result = simulate(module)
        assert len(set(result.communication_bytes)) == 1
        return result.communication_bytes[0]

    elements = 176160768  # forward and backward
    assert sent(2) - sent(1) == elements // 2 * 2  # bytes of f16


def test_v3_bytes_of_a_send():
    types = [f"tensor<1x2048x12288xf16, #dist.layout<@s{i}>>" for i in (0, 1)]
    result = simulate_text(
        f"""
        device.mesh @s0 on @c <> [0]
        device.mesh @s1 on @c <> [1]
        func.func @main(%x: {types[0]}) -> {types[1]} {{
          %y = dist.send %x : {types[0]} -> {types[1]}
          func.return %y : {types[1]}
        }}""",
        cluster(2, levels=((2, 2.0, 3.0),)),
    )
    assert result.communication_bytes == [25165824 * 2, 0]
    assert result.step_time_s == 3.0 + 25165824


FIGURE_2 = Path(__file__).parents[2] / "filecheck" / "simulate" / "pipeline.mlir"


def figure_2() -> ModuleOp:
    return parse(FIGURE_2.read_text())


def test_pp6_swapping_two_independent_lines_is_slower():
    module = figure_2()
    before = simulate(module)
    main = entry_function(module)
    line_21 = [op for op in main.body.block.ops if isinstance(op, SendOp)][1]
    line_20 = line_21.prev_op
    assert isinstance(line_20, CallOp)
    line_21.detach()
    main.body.block.insert_op_before(line_21, line_20)
    module.verify()
    after = simulate(module)
    assert after.step_time_s > before.step_time_s
    assert after.compute_s == before.compute_s
    assert after.communication_bytes == before.communication_bytes
