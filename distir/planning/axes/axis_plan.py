"""What was decided on one mesh axis: a strategy for each op of each function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation

from distir.planning.axes.axis_op import AxisStrategy
from distir.sharding.placement import Placement

Source = Literal["activation", "constant", "parameter"]
"""
What a value is computed from: inputs among other things, constants only, or parameters
and constants only. Every device can compute the latter two for itself.
"""

ArgumentKey = tuple[Placement, Source]
"""What an argument comes as, and what it is computed from."""


@dataclass(eq=False)
class AxisPlan:
    """
    What an axis does to a function whose arguments and results are so placed: to each of
    its ops but calls and the return, and to the functions that it calls.
    """

    function: FuncOp
    arguments: tuple[Placement, ...]
    results: tuple[Placement, ...]
    ops: Mapping[Operation, AxisStrategy]
    calls: Mapping[CallOp, AxisPlan]
