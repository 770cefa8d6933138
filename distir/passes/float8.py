"""`float8`: matrix products in 8-bit floats."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.train_ops.float8 import SCALINGS
from distir.errors import one_of
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.transforms.precision.float8 import use_float8
from distir.transforms.precision.options import PrecisionOptions


@dataclass(frozen=True)
class Float8Pass(DistIRPass):
    """
    Computes products of activations with parameters in 8-bit floats: both factors in e4m3,
    and gradients that come in, in e5m2. Each is multiplied before by a scale that is taken
    from its largest magnitude in that very step. All else stays in the precision that it has.
    Run it before `outline-repeats` and `differentiate`, and `expand-float8` after these.

    - `scaling`: `tensor`, a scale for each tensor; `row`, one for each row of the first factor
      and each column of the second; `row-gw-hp`, the same, with gradients of weights as products
      in the precision of the model. Scales of tensors need the largest magnitude of what all
      devices hold.
    - `keep`: scopes (with `*`) of products that stay as they are; without it, those that the
      program's results follow from without another product, which is the head; `none` keeps
      none.
    """

    name = "float8"

    scaling: str = same_option(PrecisionOptions, "float8", default="tensor")
    keep: tuple[str, ...] = same_option(PrecisionOptions, "float8_keep")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        one_of("scaling", self.scaling, SCALINGS, self.name)
        keep = None if not self.keep else [k for k in self.keep if k != "none"]
        use_float8(op, self.scaling, keep)
