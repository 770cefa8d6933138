"""`float8`: matrix products in 8-bit floats."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.train_ops.float8 import RECIPES
from distir.errors import one_of
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.transforms.precision.float8 import use_float8
from distir.transforms.precision.options import PrecisionOptions


@dataclass(frozen=True)
class Float8Pass(DistIRPass):
    """
    Computes products of activations and parameters in 8-bit floats: both factors in
    e4m3, and the gradient of the product in e5m2. Before rounding, each tensor is
    multiplied by a scale that follows from its largest magnitude in the current step.
    With blocks, elements share a scale in blocks along the dimension that a product
    sums over, and gradients have the type of the factors. All other ops keep their
    precision. Run the pass before `outline-repeats` and
    `differentiate`, and run `expand-float8` after both.

    - `scaling`: `tensor`: one scale for each tensor, from the largest magnitude on all
      devices; `row`: one scale for each row of the first factor and each column of the
      second; `row-gw-hp`: as `row`, but gradients of weights are products in the
      precision of the model; `mxfp8`: E4M3 with an E8M0 scale for blocks of 32;
      `nvfp4`: E2M1 with an E4M3 scale for blocks of 16, and a scale for each tensor.
    - `keep`: scopes (with `*`) of products that keep their precision. By default, these
      are the products of the head, which no other product follows. `none` keeps no
      product.
    """

    name = "float8"

    scaling: str = same_option(PrecisionOptions, "float8", default="tensor")
    keep: tuple[str, ...] = same_option(PrecisionOptions, "float8_keep")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        one_of("scaling", self.scaling, RECIPES, self.name)
        keep = None if not self.keep else [k for k in self.keep if k != "none"]
        use_float8(op, self.scaling, keep)
