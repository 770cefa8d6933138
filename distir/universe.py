"""
The entry point by which plain `xdsl-opt` finds DistIR's dialects, passes and targets.
"""

from xdsl.universe import Universe

from distir.dialects import get_all_dialects
from distir.lowering import get_all_targets
from distir.passes import get_all_passes

DISTIR_UNIVERSE = Universe(
    all_dialects=get_all_dialects(),
    all_passes=get_all_passes(),
    all_targets=get_all_targets(),
)
