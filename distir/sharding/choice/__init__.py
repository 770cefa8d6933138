"""
Choosing what one mesh axis does to every value of a program.

For each op the sharding rule offers candidates: split one factor over the axis, let
partial values pass through, or work on whole values. `AxisChooser` finds the cheapest
combination for a function by dynamic programming in program order. A state is what the
axis does to the values that are still live; a called function is solved once per
combination of argument placements, so a repeated layer costs what one layer costs, and
ops that are alike (`Signatures`) share their candidates. Between the first and the last
call of a function, calls whose arguments come alike take the same choice.

The price is deliberately independent of the cluster: floating-point operations per
device, plus a low price per byte communicated, plus a much lower one per byte touched.
Whoever asks for a 4-way split wants the work split 4 ways where that is possible, and
then as little communication as possible; the searches weigh the two with the cluster's
real costs. In the forward of a training step, cutting a part out of a parameter that every
device keeps is priced like computing its whole gradient on each. Among equals, values stay whole between blocks (Megatron's scheme) rather
than split: gathering is priced slightly above its bytes.
"""

from distir.sharding.choice.candidates import OpLayouts
from distir.sharding.choice.choices import (
    ArgumentKey,
    FunctionChoice,
    OpChoice,
    Source,
)
from distir.sharding.choice.micro_batches import MicroBatchChooser
from distir.sharding.choice.placement import (
    FREE,
    WHOLE,
    Placement,
    add_placement,
    placement_in,
)
from distir.sharding.choice.signatures import Signatures

__all__ = [
    "FREE",
    "WHOLE",
    "ArgumentKey",
    "FunctionChoice",
    "MicroBatchChooser",
    "OpChoice",
    "OpLayouts",
    "Placement",
    "Signatures",
    "Source",
    "add_placement",
    "placement_in",
]
