"""`quantize-caches`: stores caches of inference in 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.options import ServingOptions
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.transforms.precision.cache_quantization import quantize_caches


@dataclass(frozen=True)
class QuantizeCachesPass(DistIRPass):
    """
    Stores in 8 bits the caches to which a step of inference adds tokens, with a scale
    for each row of the last dimension. A cache `NAME` becomes `NAME.quantized` and
    `NAME.scale`. The program converts new tokens before it writes them
    (`train.quantize_rows`), and converts them back after reading
    (`train.dequantize_rows`). States of state-space layers keep their type. Run the
    pass before `outline-repeats`.

    - `cache_dtype`: `int8` or `fp8`.
    """

    name = "quantize-caches"

    cache_dtype: str = same_option(ServingOptions, "cache_dtype", default="int8")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        quantize_caches(op, self.cache_dtype)
