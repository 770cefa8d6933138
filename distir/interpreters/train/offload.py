"""
Copies of arrays to and from the host's memory, and their cost. The arrays do not
change.
"""

from __future__ import annotations

from distir.dialects.train_ops.offload import FetchOp, OffloadOp
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.train.arithmetic import Array, computes


@computes(OffloadOp)
def offload(op: OffloadOp, x: Array) -> Array:
    return x


@computes(FetchOp)
def fetch(op: FetchOp, x: Array) -> Array:
    return x


@cost_function("train.offload", "train.fetch")
def copy(context: CostContext) -> Cost:
    """
    Returns the cost of a copy. The device waits until all bytes have passed the link to
    its host. Raises DistIRError if the cluster does not give the link's bandwidth.
    """
    device = context.device
    if device.host_bandwidth is None:
        raise DistIRError(
            f"device kind @{device.name} does not say how fast it reaches the memory of its "
            f"host; add `host_bandwidth`, in bytes/s, to the cluster"
        )
    return Cost(device.launch_latency + context.bytes / device.host_bandwidth)
