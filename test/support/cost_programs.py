"""Small programs and clusters with round numbers, shared by the tests of the simulator."""

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.dialects.test import Test
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from distir.dialects import get_all_dialects
from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.interpreters.simulator import (
    Cost,
    CostContext,
    Simulation,
    cost_function,
    simulate,
)
from distir.interpreters.simulator.costs import op_costs
from distir.passes.distribute import DistributePass
from distir.passes.verify_distribution import VerifyDistributionPass


def parse(text: str) -> ModuleOp:
    """Returns the verified module of a text."""
    context = Context()
    for dialect in (Builtin, Func, Test):
        context.load_dialect(dialect)
    for name, dialect in get_all_dialects().items():
        context.register_dialect(name, dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def cluster(
    devices: int,
    *,
    levels: tuple[tuple[int, float, float], ...] = (),
    peak: float = 1.0,
    bandwidth: float = 1e300,
    launch: float = 0.0,
    memory: int = 10**18,
    reduces: bool = False,
) -> ClusterOp:
    """
    Returns a cluster of equal devices; `levels` are (span, bytes/s, latency), and `reduces`
    whether they sum in the fabric. By default, ops that count no floating-point operations
    take no time.
    """
    kind = KindOp(
        "unit",
        range(devices),
        memory=memory,
        memory_bandwidth=bandwidth,
        peak_flops={"default": peak},
        launch_latency=launch,
        host_bandwidth=1e9,
    )
    links = [
        LinkOp(
            f"level{i}",
            span,
            bandwidth=rate,
            latency=latency,
            in_fabric_reduction=reduces,
        )
        for i, (span, rate, latency) in enumerate(levels or ((devices, 1.0, 0.0),))
    ]
    return ClusterOp("c", [kind], links)


def simulate_text(text: str, on: ClusterOp) -> Simulation:
    """Returns the simulation of a program's text on a cluster."""
    return simulate(parse(text), on)


LEVELS = ((2, 3e9, 1e-6), (4, 1e9, 2e-6), (64, 1e8, 5e-6))
MACHINES = cluster(
    64, levels=LEVELS, peak=1e12, bandwidth=1e11, launch=1e-6, memory=10**9
)


def distributed(module: ModuleOp, on: ClusterOp, **options: object) -> ModuleOp:
    """
    Returns the program distributed over devices of a cluster; the given one stays as it is.
    """
    module = module.clone()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on.clone(), first)
    DistributePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    return module


def verified(module: ModuleOp, each: ModulePass) -> ModuleOp:
    """
    Returns a copy of a distributed program after a pass, and checks that it is still right.
    """
    copy = module.clone()
    each.apply(Context(), copy)
    copy.verify()
    VerifyDistributionPass().apply(Context(), copy)
    return copy


STRATEGIES = [
    {},
    {"d": 4},
    {"t": 2},
    {"d": 2, "t": 2, "zero": 1},
    {"d": 4, "zero": 2, "checkpoint": "full"},
    {"d": 2, "zero": 3, "checkpoint": "selective"},
    {"t": 4, "sequence_parallel": True},
    {"p": 2, "k": 4},
    {"p": 2, "k": 2, "d": 2, "t": 2, "schedule": "gpipe"},
    {"p": 2, "k": 4, "schedule": "zb-h1", "blocking_sends": True},
    {"p": 1, "k": 4, "d": 1},
]
"""Options of `distribute` for training steps."""


def uneven() -> ClusterOp:
    """Returns a cluster of four devices, the third of them slow."""
    kinds = [
        KindOp(
            name,
            devices,
            memory=10**9,
            memory_bandwidth=1e11,
            peak_flops={"default": peak},
            launch_latency=1e-6,
        )
        for name, devices, peak in (("fast", (0, 1, 3), 1e12), ("slow", (2,), 1e7))
    ]
    return ClusterOp("c", kinds, [LinkOp("link", 4, bandwidth=1e9, latency=1e-6)])


@contextmanager
def with_workspace(size: int) -> Iterator[str]:
    """Yields a program of one op (4 bytes of 64) that needs so many bytes while it runs."""

    @cost_function("onnx.Det")
    def needs_workspace(context: CostContext) -> Cost:
        return Cost(1.0, workspace=size)

    try:
        yield """
        func.func @main(%x: tensor<4x4xf32>) -> tensor<f32> {
          %y = onnx.Det(%x) {scope = "det"} : (tensor<4x4xf32>) -> tensor<f32>
          func.return %y : tensor<f32>
        }"""
    finally:
        del op_costs.cost_function.entries["onnx.Det"]
