"""The communication within an op that gathers a state in each of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import NamedTuple

from xdsl.ir import Operation

from distir.dialects.dist import Layout, layout_of
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.recurrent import Exchange, GatheredOp
from distir.sharding.layout import local_shape
from distir.sharding.mesh import Mesh


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
    layout = layout_of(op.r) if isinstance(op, GatheredOp) else None
    return () if layout is None else tuple(shard.axis for shard in layout.dim(1))


def state_exchange(
    op: Operation, operands: Sequence[Layout], mesh: Mesh
) -> StateExchange | None:
    """
    Returns the exchanges of states within `op` if its operands have the layouts
    `operands`. Returns None if the op exchanges nothing.
    """
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
