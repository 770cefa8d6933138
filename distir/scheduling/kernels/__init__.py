"""
Kernels that DistIR brings, for `replace`: `layer.find(patterns.bias_gelu).replace(kernels.bias_gelu)`.

Their functions are in the files of this folder, which packages get copies of as of users'
files; they need PyTorch alone. Importing this module loads none of them.
"""

from __future__ import annotations

from distir.scheduling.kernel import Kernel

attention = Kernel("attention", "flash_attention:attention", gradient="autograd")
"""
PyTorch's flash attention, for `patterns.attention` and, having `causal=1`, for
`patterns.causal_attention`. Having `head_size=64`, for heads that are packed into the last
dimension.
"""

masked_attention = Kernel(
    "masked_attention", "flash_attention:masked_attention", gradient="autograd"
)
"""The same with a mask, for `patterns.masked_attention`."""

bias_gelu = Kernel("bias_gelu", "bias_gelu:bias_gelu", gradient="bias_gelu:backward")
"""
GELU of a sum with a bias, of which the backward needs the operands alone, for
`patterns.bias_gelu` and, having `approximate="tanh"`, for `patterns.bias_gelu_tanh`.
"""

add_norm = Kernel("add_norm", "add_norm:add_norm", gradient="add_norm:backward")
"""
Layer normalisation of a sum with the residual, for `patterns.add_norm`; behind dropout, too.
Having `epsilon`, if that is not 1e-5.
"""

bias_add_norm = Kernel(
    "bias_add_norm", "add_norm:bias_add_norm", gradient="add_norm:bias_backward"
)
"""The same of a sum with a bias besides, for `patterns.bias_add_norm`."""

linear_cross_entropy = Kernel(
    "linear_cross_entropy",
    "linear_cross_entropy:linear_cross_entropy",
    gradient="linear_cross_entropy:backward",
)
"""
The cross-entropies of a linear layer without its logits ever being there as a whole, for
`patterns.linear_cross_entropy`; having `reduction="sum"` or `"none"`, if that is not the mean.
"""

__all__ = [
    "add_norm",
    "attention",
    "bias_add_norm",
    "bias_gelu",
    "linear_cross_entropy",
    "masked_attention",
]
