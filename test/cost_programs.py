"""Small programs and clusters with round numbers, shared by the tests of the simulator."""

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.dialects.test import Test
from xdsl.parser import Parser

from distir.dialects import get_all_dialects
from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.interpreters.cost import Simulation, simulate


def parse(text: str) -> ModuleOp:
    """The verified module of a text."""
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
) -> ClusterOp:
    """
    A cluster of equal devices; `levels` are (span, bytes/s, latency). Without figures,
    ops that count no floating-point operations take no time.
    """
    kind = KindOp(
        "unit",
        range(devices),
        memory=memory,
        memory_bandwidth=bandwidth,
        peak_flops={"default": peak},
        launch_latency=launch,
    )
    links = [
        LinkOp(f"level{i}", span, bandwidth=rate, latency=latency)
        for i, (span, rate, latency) in enumerate(levels or ((devices, 1.0, 0.0),))
    ]
    return ClusterOp("c", [kind], links)


def simulate_text(text: str, on: ClusterOp) -> Simulation:
    """The simulation of a program's text on a cluster."""
    return simulate(parse(text), on)
