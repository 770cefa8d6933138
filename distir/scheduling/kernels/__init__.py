"""
Kernels that come with DistIR, for `replace`:
`layer.find(patterns.bias_gelu).replace(kernels.bias_gelu)`.

Their functions are in the files of this folder, which are copied into packages as users'
files are; they need only PyTorch. Importing this module loads none of them.
"""

from __future__ import annotations

from distir.scheduling.kernel import Kernel

attention = Kernel("attention", "flash_attention:attention", gradient="autograd")
"""
PyTorch's flash attention. It replaces `patterns.attention` and, with `having(causal=1)`,
`patterns.causal_attention`. Use `having(head_size=64)` for heads that are packed into the
last dimension.
"""

masked_attention = Kernel(
    "masked_attention", "flash_attention:masked_attention", gradient="autograd"
)
"""PyTorch's flash attention with a mask. It replaces `patterns.masked_attention`."""

bias_gelu = Kernel("bias_gelu", "bias_gelu:bias_gelu", gradient="bias_gelu:backward")
"""
GELU of the sum with a bias; its backward keeps only the operands. It replaces
`patterns.bias_gelu` and, with `having(approximate="tanh")`, `patterns.bias_gelu_tanh`.
"""

add_norm = Kernel("add_norm", "add_norm:add_norm", gradient="add_norm:backward")
"""
Layer normalisation of the sum with the residual. It replaces `patterns.add_norm`, after
dropout too. Use `having(epsilon=...)` for an epsilon other than 1e-5.
"""

bias_add_norm = Kernel(
    "bias_add_norm", "add_norm:bias_add_norm", gradient="add_norm:bias_backward"
)
"""
Layer normalisation of the sum with a bias and the residual. It replaces
`patterns.bias_add_norm`.
"""

bias_dropout_add = Kernel(
    "bias_dropout_add", "dropout_add:bias_dropout_add", gradient="autograd"
)
"""
The sum of a residual and what dropout leaves of a value with its bias. It replaces
`patterns.bias_dropout_add` and `patterns.rows_bias_dropout_add`, in training mode or not.
"""

bias_dropout_add_norm = Kernel(
    "bias_dropout_add_norm", "dropout_add:bias_dropout_add_norm", gradient="autograd"
)
"""
The same sum, normalised. It replaces `patterns.bias_dropout_add_norm` and, with
`having(epsilon=1e-12)`, `patterns.bias_dropout_add_norm_of(1e-12)`.
"""

linear_cross_entropy = Kernel(
    "linear_cross_entropy",
    "linear_cross_entropy:linear_cross_entropy",
    gradient="linear_cross_entropy:backward",
)
"""
The cross-entropies of a linear layer, computed without holding all of its logits. It
replaces `patterns.linear_cross_entropy`; use `having(reduction="sum")` or `"none"` for a
reduction other than the mean. `patterns.head_cross_entropy` is the same of a language
model's head, rows of which are those of sequences.
"""

biased_cross_entropy = Kernel(
    "biased_cross_entropy",
    "linear_cross_entropy:biased_cross_entropy",
    gradient="linear_cross_entropy:biased_backward",
)
"""
The same of a linear layer with a bias. It replaces `patterns.head_bias_cross_entropy`.
"""

__all__ = [
    "add_norm",
    "attention",
    "bias_add_norm",
    "bias_dropout_add",
    "bias_dropout_add_norm",
    "bias_gelu",
    "biased_cross_entropy",
    "linear_cross_entropy",
    "masked_attention",
]
