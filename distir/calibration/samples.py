"""
Samples for the fit of figures: the FLOPs and bytes of the ops of a probe, as the
simulator counts them, and the measured time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.calibration.fit import OpFit, Sample, fit_op
from distir.calibration.probe import Probe, Prober
from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.interpreters.simulator.costs.hardware import DeviceKind
from distir.interpreters.simulator.costs.op_costs import Cost, CostContext, cost_of
from distir.interpreters.simulator.profiles.measured import figures_of
from distir.interpreters.simulator.work import Product, Work
from distir.program import entry_function
from distir.sharding.layout import local_shape
from distir.sharding.mesh import Mesh, meshes

_NOWHERE = DeviceKind("none", 0, 1.0, {"default": 1.0}, 0.0)


@dataclass(frozen=True)
class _CostRecorder(CostContext):
    """
    Records the FLOPs and bytes that a cost function reports for an op, and ignores the
    returned cost.
    """

    seen: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def roofline(
        self,
        flops: float | None = None,
        moved: float | None = None,
        product: Product | None = None,
    ) -> Cost:
        self.seen.append(
            (
                self.flops if flops is None else flops,
                self.bytes if moved is None else moved,
            )
        )
        return super().roofline(flops, moved, product)

    def unworked(self) -> Cost:
        self.seen.append((0.0, self.bytes))
        return super().unworked()


@dataclass(frozen=True)
class Described:
    """
    An op of a probe, with its element type, the FLOPs that it computes and the bytes
    that it moves.
    """

    op: Operation
    element: str
    flops: float
    moved: float


def described(op: Operation, meshes: Mapping[str, Mesh]) -> Described:
    """
    Returns an op with its FLOPs and bytes on one device, computed by the simulator's
    cost functions.
    """
    layouts = [layout_of(value) for value in (*op.operands, *op.results)]
    mesh = next((meshes[layout.mesh] for layout in layouts if layout), None)

    def size(value: SSAValue) -> int:
        type_, layout = value.type, layout_of(value)
        assert isinstance(type_, TensorType)
        shape = type_.get_shape()
        if layout is not None and mesh is not None:
            shape = local_shape(shape, layout, mesh)
        return ceil(prod(shape) * bytes_per_element(type_.element_type))

    context = _CostRecorder(
        op,
        _NOWHERE,
        Work.of(op, mesh),
        tuple(size(v) for v in op.operands),
        tuple(size(v) for v in op.results),
    )
    cost_of(context)
    ((flops, moved),) = context.seen or [(0.0, 0.0)]
    return Described(op, context.element_type, flops, moved)


OpFits = dict[str, dict[str, OpFit]]
"""The fitted ops, by element type and then by name."""


def fit_ops(probes: Sequence[Probe], seconds: Sequence[float]) -> OpFits:
    """
    Returns the figures of all measured ops, given the measured `seconds` of each probe.
    If a probe contains ops besides the measured op, the fitted time of these ops is
    subtracted. Raises DistIRError if an op has too few measurements.
    """
    prober = Prober()
    measured: dict[tuple[str, str], list[tuple[list[Described], float]]] = {}
    for probe, took in zip(probes, seconds, strict=True):
        module = prober.module(probe)
        found = meshes(module)
        ops = [
            described(op, found)
            for op in entry_function(module).body.block.ops
            if not isinstance(op, ReturnOp) and op.name != "onnx.Constant"
        ]
        measured.setdefault((ops[-1].element, probe.name), []).append((ops, took))
    fits: OpFits = {}
    # Probes of several ops come after those of one.
    order = sorted(measured, key=lambda key: max(len(ops) for ops, _ in measured[key]))
    for element, name in order:
        samples = [
            Sample(ops[-1].flops, ops[-1].moved, took - _known(ops[:-1], fits), took)
            for ops, took in measured[element, name]
        ]
        fits.setdefault(element, {})[name] = fit_op(name, samples)
    return fits


def _known(ops: Sequence[Described], fits: OpFits) -> float:
    total = 0.0
    for each in ops:
        table = {name: f.figures for name, f in fits.get(each.element, {}).items()}
        found = figures_of(each.op, table)
        total += 0.0 if found is None else found.seconds(each.flops, each.moved)
    return total
