"""
The communication within an op that gathers a state in each of its steps, such as a
recurrent layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import NamedTuple

from xdsl.ir import Operation

from distir.dialects.dist import Layout, layout_of
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.opaque import OpaqueBase
from distir.dialects.train_ops.recurrent import Exchange, GatheredOp
from distir.sharding.kernel_rule import evaluated
from distir.sharding.layout import local_shape
from distir.sharding.mesh import Mesh
from distir.sharding.opaque_rule import parse_opaque_rule
from distir.sharding.rule import rule_for


class StateExchange(NamedTuple):
    """
    The collectives within an op over the mesh axes `axes`. Each collective gathers or
    reduces a state; `size` is the size of the whole state on one device, in bytes.
    """

    axes: tuple[str, ...]
    size: int
    kinds: tuple[Exchange, ...]


def exchanged_axes(op: Operation) -> tuple[str, ...]:
    """
    Returns the mesh axes over which `op`, an op of the distributed form, exchanges
    states. The tuple is empty for an op that does not communicate while it computes.
    """
    if isinstance(op, OpaqueBase):
        layouts = [layout_of(v) for v in (*op.operands, *op.results)]
        split = {a for layout in layouts if layout for a in layout.split_axes}
        return tuple(o.axis for o in rule_for(op).own_axes if o.axis in split)
    layout = layout_of(op.r) if isinstance(op, GatheredOp) else None
    return () if layout is None else tuple(shard.axis for shard in layout.dim(1))


def state_exchange(
    op: Operation, operands: Sequence[Layout], mesh: Mesh
) -> StateExchange | None:
    """
    Returns the exchanges of states within `op` if its operands have the layouts
    `operands`. Returns None if the op exchanges nothing.
    """
    if isinstance(op, OpaqueBase):
        return _declared_exchange(op, operands, mesh)
    if not isinstance(op, GatheredOp):
        return None
    x, r = (list(op.operands).index(value) for value in (op.x, op.r))
    axes = tuple(
        shard.axis for shard in operands[r].dim(1) if mesh.size(shard.axis) > 1
    )
    if not axes:
        return None
    directions, _, _ = local_shape(shape_of(op.r), operands[r], mesh)
    batch = local_shape(shape_of(op.x), operands[x], mesh)[op.batch_first is None]
    elements = prod((directions, batch, op.state_shape[2]))
    size = ceil(elements * bytes_per_element(element_type(op.r)))
    return StateExchange(axes, size, op.exchanges)


def _declared_exchange(
    op: OpaqueBase, operands: Sequence[Layout], mesh: Mesh
) -> StateExchange | None:
    """
    Returns the messages of an opaque module that communicates on its own, as one
    all-to-all of the declared bytes. Returns None if the module declares no bytes.
    """
    rule = rule_for(op)
    axes = tuple(own.axis for own in rule.axes_on(mesh))
    if not axes or op.sent is None:
        return None
    factors = parse_opaque_rule(op.rule.data).factors
    sizes = factors.sizes(
        [shape_of(v) for v in op.operands[: len(factors.operands)]],
        [shape_of(v) for v in op.results],
    )
    total = evaluated(op.sent.data, sizes)
    split = {axis for layout in operands for axis in layout.split_axes}
    sent = total / prod(mesh.size(axis) for axis in split)
    parts = prod(mesh.size(axis) for axis in axes)
    # An all-to-all leaves one of the parts where it is.
    whole = ceil(sent * parts / (parts - 1))
    return StateExchange(axes, whole, (Exchange("all_to_all", 1),))
