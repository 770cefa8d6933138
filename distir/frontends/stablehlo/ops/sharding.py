"""Converts StableHLO ops that request the sharding of a value."""

from __future__ import annotations

from collections.abc import Sequence

from distir.frontends.stablehlo.registry import HloCall, UnsupportedError, converts
from distir.frontends.stablehlo.tensors import LazyTensor

NAME_TARGET = "distir.checkpoint_name"
"""The custom call that stands for a value with a name, which it returns as it is."""


@converts("sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier")
def constraint(call: HloCall) -> LazyTensor:
    """
    Converts a sharding constraint to a request for a layout, if the import reads
    shardings. Returns the constrained tensor.
    """
    return call.converter.constrained(call.op, call.operands[0])


@converts("stablehlo.custom_call")
def custom_call(call: HloCall) -> LazyTensor | Sequence[LazyTensor]:
    """
    Converts a call of `@Sharding`, which is GSPMD's constraint, or the call that gives
    a value a name. Raises UnsupportedError for a call of any other function.
    """
    target = call.target
    if target == "Sharding":
        return constraint(call)
    if target == NAME_TARGET:
        return LazyTensor.of(call.build.whole(call.operands[0]))
    if target.startswith("SPMD"):
        raise UnsupportedError(f"@{target} belongs to shard_map, {PER_DEVICE}")
    raise UnsupportedError(f"its target @{target} is not known")


@converts("sdy.manual_computation")
def manual_computation(call: HloCall) -> LazyTensor:
    """Raises UnsupportedError, because `shard_map` is not supported."""
    raise UnsupportedError(f"it is shard_map, {PER_DEVICE}")


PER_DEVICE = (
    "which computes on each device by itself, so that no layout can be chosen for it"
)
