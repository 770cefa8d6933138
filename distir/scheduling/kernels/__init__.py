"""
Kernels that come with DistIR, for `replace`:
`layer.find(patterns.bias_gelu).replace(kernels.bias_gelu)`.

The functions of these kernels are in the other files of this folder. The files need
only PyTorch, and packages contain copies of these files, as of users' files. Importing
this module loads none of these files.
"""

from __future__ import annotations

from distir.scheduling.kernel import Kernel

attention = Kernel("attention", "flash_attention:attention", gradient="autograd")
"""
PyTorch's flash attention. It replaces `patterns.attention` and, with
`having(causal=1)`, `patterns.causal_attention`. If heads of size 64 are packed into the
last dimension, use `having(head_size=64)`.
"""

masked_attention = Kernel(
    "masked_attention", "flash_attention:masked_attention", gradient="autograd"
)
"""PyTorch's flash attention with a mask. It replaces `patterns.masked_attention`."""

bias_gelu = Kernel("bias_gelu", "bias_gelu:bias_gelu", gradient="bias_gelu:backward")
"""
The GELU of a sum with a bias. Its backward keeps only the operands. It replaces
`patterns.bias_gelu` and, with `having(approximate="tanh")`, `patterns.bias_gelu_tanh`.
"""

add_norm = Kernel("add_norm", "add_norm:add_norm", gradient="add_norm:backward")
"""
The layer norm of the sum of a value and a residual. It replaces `patterns.add_norm`,
also after dropout. For an epsilon other than 1e-5, use `having(epsilon=...)`.
"""

bias_add_norm = Kernel(
    "bias_add_norm", "add_norm:bias_add_norm", gradient="add_norm:bias_backward"
)
"""
The layer norm of the sum of a value, a bias and a residual. It replaces
`patterns.bias_add_norm`.
"""

bias_dropout_add = Kernel(
    "bias_dropout_add", "dropout_add:bias_dropout_add", gradient="autograd"
)
"""
The dropout of the sum of a value and a bias, added to a residual. It replaces
`patterns.bias_dropout_add` and `patterns.rows_bias_dropout_add`, in training and in
evaluation mode.
"""

bias_dropout_add_norm = Kernel(
    "bias_dropout_add_norm", "dropout_add:bias_dropout_add_norm", gradient="autograd"
)
"""
The layer norm of `bias_dropout_add`. It replaces `patterns.bias_dropout_add_norm` and,
with `having(epsilon=1e-12)`, `patterns.bias_dropout_add_norm_of(1e-12)`.
"""

linear_cross_entropy = Kernel(
    "linear_cross_entropy",
    "linear_cross_entropy:linear_cross_entropy",
    gradient="linear_cross_entropy:backward",
)
"""
The cross-entropy of a linear layer, computed without holding all logits. It replaces
`patterns.linear_cross_entropy` and, for the head of a language model,
`patterns.head_cross_entropy`. For a reduction other than the mean, use
`having(reduction="sum")` or `having(reduction="none")`.
"""

biased_cross_entropy = Kernel(
    "biased_cross_entropy",
    "linear_cross_entropy:biased_cross_entropy",
    gradient="linear_cross_entropy:biased_backward",
)
"""
The cross-entropy of a linear layer with a bias, computed without holding all logits. It
replaces `patterns.head_bias_cross_entropy`.
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
