"""`convert-floats`: converts a program to another floating-point type."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.onnx_ops.values import FLOAT_TYPES
from distir.errors import one_of
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.transforms.precision.options import PrecisionOptions
from distir.transforms.precision.retyping import convert


@dataclass(frozen=True)
class ConvertFloatsPass(DistIRPass):
    """
    Makes a sequential program compute in one floating-point type, as a PyTorch module
    does after `module.to(dtype)`. Parameters get this type, and inputs are cast to it.
    Losses are computed in f32. Buffers, and values computed from constants alone, keep
    their type until an op combines them with other values. Run the pass before
    `outline-repeats` and `differentiate`. `differentiate` keeps f32 copies of the
    parameters for the optimizer.

    - `dtype`: `bf16`, `f16` or `f32`;
    - `stored`: whether parameters are stored in `dtype`; with `false` they keep their
      type and are cast once in a step.
    """

    name = "convert-floats"

    dtype: str = same_option(PrecisionOptions, "dtype", default="bf16")
    stored: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        one_of("type of floats", self.dtype, tuple(FLOAT_TYPES), self.name)
        convert(op, FLOAT_TYPES[self.dtype], stored=self.stored)
