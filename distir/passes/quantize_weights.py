"""`quantize-weights`: replaces weights in products by weights of 8 or 4 bits."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.options import ServingOptions
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.transforms.precision.weight_quantization import quantize_weights


@dataclass(frozen=True)
class QuantizeWeightsPass(DistIRPass):
    """
    Replaces products of activations and matrices of parameters by products that read
    weights of 8 or 4 bits: `train.quantized_linear` and `train.group_quantized_linear`.
    Grouped products of experts (`train.grouped_product`) read the results of
    `train.dequantize_rows` or `train.dequantize_groups`. A parameter `NAME` becomes
    `NAME.quantized`, `NAME.scale` and, for 4 bits, `NAME.zero`; `distir import` converts
    the numbers. The head, and parameters that ops other than products also use, stay
    unchanged. Run the pass before `outline-repeats`.

    - `weights_dtype`: `int8` or `fp8`: a scale for each row; `int4`: a scale and a zero
      point for each group of a row.
    - `weights_group`: the number of weights in a group.
    """

    name = "quantize-weights"

    weights_dtype: str = same_option(ServingOptions, "weights_dtype", default="int8")
    weights_group: int = same_option(ServingOptions, "weights_group")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        quantize_weights(op, self.weights_dtype, self.weights_group)
