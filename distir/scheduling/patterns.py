"""
Patterns for `find`, for groups of ops that kernels often replace:
`layer.find(patterns.attention)`.

In programs from `distir import` and the builders, attention is a single op, so the
pattern of attention is one op too. The queries, keys and values of this op have four
dimensions, or three if the heads are packed into the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distir.scheduling.tracing import op


def attention(query: Any, key: Any, value: Any) -> Any:
    """Attention of all queries to all keys."""
    import torch.nn.functional as F

    return F.scaled_dot_product_attention(query, key, value)


def causal_attention(query: Any, key: Any, value: Any) -> Any:
    """Attention of each query to the keys up to its own position."""
    import torch.nn.functional as F

    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def masked_attention(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """
    Attention with a mask. The mask is added to the scores, or holds booleans that
    select the keys.
    """
    import torch.nn.functional as F

    return F.scaled_dot_product_attention(query, key, value, mask)


def bias_gelu(x: Any, bias: Any) -> Any:
    """The GELU of `x + bias`."""
    import torch.nn.functional as F

    return F.gelu(x + bias)


def bias_gelu_tanh(x: Any, bias: Any) -> Any:
    """The GELU of `x + bias`, with the tanh approximation that GPT-2 uses."""
    import torch.nn.functional as F

    return F.gelu(x + bias, approximate="tanh")


def add_norm(x: Any, residual: Any, weight: Any, shift: Any) -> Any:
    """The layer norm of `x + residual`, with epsilon 1e-5."""
    import torch.nn.functional as F

    return F.layer_norm(x + residual, (), weight, shift)


def bias_add_norm(x: Any, bias: Any, residual: Any, weight: Any, shift: Any) -> Any:
    """The layer norm of `x + bias + residual`, with epsilon 1e-5."""
    import torch.nn.functional as F

    return F.layer_norm(x + bias + residual, (), weight, shift)


def bias_dropout_add(x: Any, bias: Any, residual: Any) -> Any:
    """The dropout of `x + bias`, added to `residual`."""
    import torch.nn.functional as F

    return F.dropout(x + bias) + residual


def bias_dropout_add_norm(
    x: Any, bias: Any, residual: Any, weight: Any, shift: Any
) -> Any:
    """
    The layer norm of the sum of `residual` and the dropout of `x + bias`, with epsilon
    1e-5.
    """
    import torch.nn.functional as F

    total = F.dropout(x + bias) + residual
    return F.layer_norm(total, (), weight, shift)


def bias_dropout_add_norm_of(epsilon: float) -> Callable[..., Any]:
    """
    Returns the pattern `bias_dropout_add_norm` with `epsilon` instead of 1e-5. BERT has
    1e-12.
    """
    import torch.nn.functional as F

    def pattern(x: Any, bias: Any, residual: Any, weight: Any, shift: Any) -> Any:
        total = F.dropout(x + bias) + residual
        return F.layer_norm(total, (), weight, shift, epsilon)

    return pattern


def rows_bias_dropout_add(x: Any, bias: Any, residual: Any) -> Any:
    """
    The pattern `bias_dropout_add` for a value `x` of shape [rows, features], as GPT-2's
    linear layers return it, and a residual of shape [batch, sequence, features].
    """
    import torch.nn.functional as F

    return F.dropout(op("Reshape", x + bias)) + residual


def cross_entropy(scores: Any, labels: Any) -> Any:
    """
    The mean cross-entropy. `decompose()` replaces it by the sum of the losses and a
    division, because a kernel can compute the sum on parts of the rows.
    """
    import torch.nn.functional as F

    return F.cross_entropy(scores, labels)


def head_cross_entropy(x: Any, weight: Any, labels: Any) -> Any:
    """
    The mean cross-entropy of a language model's head without a bias. The head is a
    linear layer on `x` of shape [batch, sequence, features]; `labels` has one label per
    row.
    """
    import torch.nn.functional as F

    return F.cross_entropy(op("Reshape", F.linear(x, weight)), labels)


def head_bias_cross_entropy(x: Any, weight: Any, bias: Any, labels: Any) -> Any:
    """
    The mean cross-entropy of a language model's head with a bias. The head is a linear
    layer on `x` of shape [batch, sequence, features]; `labels` has one label per row.
    """
    import torch.nn.functional as F

    return F.cross_entropy(op("Reshape", F.linear(x, weight, bias)), labels)


def head_cross_entropy_sum(x: Any, weight: Any, labels: Any) -> Any:
    """
    The sum of the cross-entropies of a language model's head without a bias. The head
    is a linear layer on `x` of shape [batch, sequence, features].
    """
    import torch.nn.functional as F

    scores = op("Reshape", F.linear(x, weight))
    return F.cross_entropy(scores, labels, reduction="sum")


def head_bias_cross_entropy_sum(x: Any, weight: Any, bias: Any, labels: Any) -> Any:
    """
    The sum of the cross-entropies of a language model's head with a bias. The head is a
    linear layer on `x` of shape [batch, sequence, features].
    """
    import torch.nn.functional as F

    scores = op("Reshape", F.linear(x, weight, bias))
    return F.cross_entropy(scores, labels, reduction="sum")


def linear_cross_entropy(x: Any, weight: Any, labels: Any) -> Any:
    """
    The mean cross-entropy of a linear layer without a bias, on `x` of shape [rows,
    features].
    """
    import torch.nn.functional as F

    return F.cross_entropy(op("Gemm", x, weight, transB=1), labels)
