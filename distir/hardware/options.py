"""
Options that describe a cluster's devices, shared by commands, passes and functions.
"""

from __future__ import annotations

from dataclasses import dataclass

from distir.options import option


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The options that choose the cluster over which a program is distributed."""

    cluster: str = option(
        "",
        "dgx2, dgx-a100, dgx-h100, dgx-h200, dgx-b200, gb200-nvl72, h800, mi300x, v100-roce, "
        "cpu, or an .mlir file with a device.cluster",
        metavar="NAME|FILE",
    )
    devices: int | None = option(
        None,
        "grow the cluster by whole nodes to N devices",
        metavar="N",
    )


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """
    The options for the assumptions of a simulation. A profile gives the performance
    that devices reach in practice (see docs/profiles.md).
    """

    profile: tuple[str, ...] = option(
        (),
        "what the devices reach in practice instead of what their data sheets say: a "
        "built-in profile (A100, H100, V100, ...), a file that `distir calibrate` wrote, auto "
        "for those that the cluster names (default), or none for the data sheets; once for "
        "each kind of device",
        metavar="NAME|FILE|auto|none",
    )
    expert_imbalance: float | None = option(
        None,
        "the load of the busiest device of expert parallelism, as a multiple of the mean "
        "load, where experts take all tokens that choose them: times and buffers are "
        "counted for it. 1 is an even load, inf the worst case, for which generated "
        "packages allocate (default: what the program says, or 1.3)",
        metavar="F",
        kind="at_least_one",
    )
