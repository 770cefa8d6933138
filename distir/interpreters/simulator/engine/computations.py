"""
The time, floating-point operations and workspace of ops that compute, on the devices of
a mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xdsl.ir import Operation, SSAValue

from distir.errors import DistIRError
from distir.interpreters.simulator.costs.op_costs import (
    FREE,
    VIEWS,
    Cost,
    CostContext,
    cost_of,
)
from distir.interpreters.simulator.engine.device_map import Bytes, DeviceMap
from distir.interpreters.simulator.engine.expert_rows import ExpertRows
from distir.interpreters.simulator.fusion import (
    is_compiled,
    reads_as_converted,
    shares_no_kernel,
)
from distir.interpreters.simulator.work import Work
from distir.program import describe
from distir.sharding.rule import Rule
from distir.sharding.signatures import Signatures, on_any_mesh

Seconds = float | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Computation:
    """
    The work of an op on each device of its mesh.

    - `seconds`: the time, one number for all devices or one per device;
    - `flops`: the floating-point operations, and `seconds_at_peak` their time at the
      device's peak; `recomputed` is the share of `flops` that repeats work of the
      forward pass;
    - `issue`: the seconds in which the host issues the op;
    - `workspace`: the bytes that the op needs besides operands and results;
    - `is_view`: whether its result is its first operand's memory;
    - `shapes`: the shapes of operands and results on one device; `operand_bytes`: the
      bytes of operands.
    """

    seconds: Seconds
    flops: float
    seconds_at_peak: Seconds
    recomputed: float
    issue: float
    workspace: Bytes
    is_view: bool
    shapes: tuple[tuple[int, ...], ...]
    operand_bytes: tuple[int, ...]


class Computations:
    """
    The work of a program's ops on the devices of `device_map`, computed once for equal
    ops. With a profile or a compiler, an op that may share a kernel with its neighbours
    is computed each time, because its work also depends on these neighbours.
    """

    def __init__(self, device_map: DeviceMap):
        self.device_map = device_map
        self._signatures = Signatures(on_any_mesh)
        self._works: dict[tuple[int, object], Work] = {}
        self._known: dict[tuple[int, object, object], Computation] = {}

    def of(self, op: Operation, name: str | None) -> Computation:
        """
        Returns the work of an op on the mesh `name`; None stands for the only device of
        a sequential program. Raises DistIRError for values whose shape is unknown.
        """
        hardware, mesh = (
            self.device_map.hardware,
            self.device_map.meshes.get(name or ""),
        )
        signature, axes = self._signatures.of(op), mesh.axes if mesh else ()
        work = self._works.get((signature, axes))
        if work is None:
            work = Work.of(op, mesh, self._signatures.rule(op))
            self._works[signature, axes] = work
        is_alone = shares_no_kernel(op) and not hardware.has_measured_ops
        if is_compiled(op) or (hardware.has_profiles and not is_alone):
            return self._computation(op, name, work)
        # All meshes with the same axes are alike if their devices are.
        converted = tuple(reads_as_converted(v) is not None for v in op.operands)
        others = converted, _is_converted_later(op), self._rows(op)
        key = signature, axes if hardware.is_uniform else name, others
        if key not in self._known:
            self._known[key] = self._computation(op, name, work)
        return self._known[key]

    def rule(self, op: Operation) -> Rule:
        """Returns the sharding rule of an op. Ops that are alike share it."""
        return self._signatures.rule(op)

    def _rows(self, op: Operation) -> tuple[ExpertRows | None, ...]:
        """
        Returns the rows of experts that each operand and result of `op` holds. Returns
        an empty tuple if the program has no rows of experts that may be empty.
        """
        known = self.device_map.expert_rows
        return tuple(
            [known.get(v) for v in (*op.operands, *op.results)] if known else ()
        )

    def mesh_name(self, op: Operation) -> str | None:
        """
        Returns the name of the mesh on which an op computes, or None in a sequential
        program. Raises DistIRError if its values are on several meshes.
        """
        names = self.device_map.mesh_names((*op.operands, *op.results))
        if len(names) > 1:
            where = " and ".join(f"@{name}" for name in names)
            raise DistIRError(
                f"{describe(op)} uses values on meshes {where}; a dist.send must bring "
                f"them together"
            )
        return names[0] if names else None

    def _computation(self, op: Operation, name: str | None, work: Work) -> Computation:
        device_map = self.device_map
        operand_bytes = tuple(self._bytes_read(v, op) for v in op.operands)
        result_bytes = tuple(device_map.bytes_of(v, op) for v in op.results)
        load = max((device_map.load_of(v) for v in op.operands), default=1.0)
        is_converted_later = _is_converted_later(op)
        by_kind: dict[int, Cost] = {}
        at_peak: dict[int, float] = {}
        ids = device_map.device_ids(name)
        for kind in device_map.hardware.distinct_kinds(ids):
            context = CostContext(op, kind, work, operand_bytes, result_bytes, load)
            by_kind[id(kind)] = FREE if is_converted_later else cost_of(context)
            at_peak[id(kind)] = context.seconds_at_peak
        kinds = device_map.hardware.kinds
        seconds: Seconds
        seconds_at_peak: Seconds
        if len(by_kind) == 1:
            (cost,) = by_kind.values()
            seconds, (seconds_at_peak,) = cost.seconds, at_peak.values()
        else:
            seconds = np.array([by_kind[id(kinds[d])].seconds for d in ids])
            seconds_at_peak = np.array([at_peak[id(kinds[d])] for d in ids])
        return Computation(
            seconds,
            work.flops,
            seconds_at_peak,
            work.recomputed,
            max(c.issue for c in by_kind.values()),
            device_map.allocated(max(c.workspace for c in by_kind.values()), name),
            is_converted_later
            or (
                VIEWS.of(op)
                and len(op.results) == 1
                and operand_bytes[:1] >= result_bytes
            ),
            tuple(
                [device_map.shape_of_type(v.type) for v in (*op.operands, *op.results)]
            ),
            operand_bytes,
        )

    def _bytes_read(self, value: SSAValue, op: Operation) -> int:
        """
        Returns the bytes that `op` reads for its operand `value` on one device. If the
        op's kernel converts rows of 8 or 4 bits while it reads them, these are the bytes
        of the rows and their scales.
        """
        rows = reads_as_converted(value)
        if rows is None:
            return self.device_map.bytes_of(value, op)
        return sum(self.device_map.bytes_of(v, rows) for v in rows.operands)


def _is_converted_later(op: Operation) -> bool:
    """
    Whether `op` converts rows of 8 or 4 bits to wider floats, and the kernels of all its
    users do this while they read the rows.
    """
    return any(reads_as_converted(result) is op for result in op.results)
