"""`autocast`: mixed precision, with the types of operators as in PyTorch's autocast."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.onnx_ops.values import LOW_PRECISION_FLOATS
from distir.errors import one_of
from distir.options import same_option
from distir.passes.convert_floats import ConvertFloatsPass
from distir.passes.options import DistIRPass
from distir.transforms.precision.options import PrecisionOptions
from distir.transforms.precision.retyping import autocast


@dataclass(frozen=True)
class AutocastPass(DistIRPass):
    """
    Casts operands as PyTorch's `autocast` does on GPUs. Matrix products, convolutions
    and attention compute in 16 bits. Norms, softmax, powers, sums and losses compute in
    f32. All other ops compute in the widest type of their operands. Parameters keep
    their type, and each is cast once in a step. Run the pass before `outline-repeats`
    and `differentiate`.

    - `dtype`: `bf16` or `f16`.
    """

    name = "autocast"

    dtype: str = same_option(PrecisionOptions, "autocast", default="bf16")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        one_of("type for autocast", self.dtype, tuple(LOW_PRECISION_FLOATS), self.name)
        autocast(op, LOW_PRECISION_FLOATS[self.dtype])


def precision_passes(dtype: str | None, narrow: str | None) -> list[DistIRPass]:
    """
    Returns the passes that convert a program to the floating-point type `dtype` and
    autocast it to the type `narrow`. A type that is None adds no pass.
    """
    convert = [] if dtype is None else [ConvertFloatsPass(dtype)]
    return [*convert, *([] if narrow is None else [AutocastPass(narrow)])]
