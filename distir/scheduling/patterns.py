"""
Patterns for `find` of what kernels often replace: `layer.find(patterns.attention)`.

`distir import` and the builders make one op of attention, so that its pattern is one op
too: of queries, keys and values of four dimensions, or of three, in which heads are packed.
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
    """Attention of each query to the keys up to its position."""
    import torch.nn.functional as F

    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def masked_attention(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Attention with a mask, which is added to the scores or says which of them count."""
    import torch.nn.functional as F

    return F.scaled_dot_product_attention(query, key, value, mask)


def bias_gelu(x: Any, bias: Any) -> Any:
    """GELU of a sum with a bias."""
    import torch.nn.functional as F

    return F.gelu(x + bias)


def bias_gelu_tanh(x: Any, bias: Any) -> Any:
    """GELU of a sum with a bias, as GPT-2 approximates it."""
    import torch.nn.functional as F

    return F.gelu(x + bias, approximate="tanh")


def add_norm(x: Any, residual: Any, weight: Any, shift: Any) -> Any:
    """Layer normalisation of a sum with a residual; epsilon is 1e-5."""
    import torch.nn.functional as F

    return F.layer_norm(x + residual, (), weight, shift)


def bias_add_norm(x: Any, bias: Any, residual: Any, weight: Any, shift: Any) -> Any:
    """Layer normalisation of a sum with a bias and a residual; epsilon is 1e-5."""
    import torch.nn.functional as F

    return F.layer_norm(x + bias + residual, (), weight, shift)


def bias_dropout_add(x: Any, bias: Any, residual: Any) -> Any:
    """Dropout of a sum with a bias, and the sum of that with a residual."""
    import torch.nn.functional as F

    return F.dropout(x + bias) + residual


def bias_dropout_add_norm(
    x: Any, bias: Any, residual: Any, weight: Any, shift: Any
) -> Any:
    """Layer normalisation of `bias_dropout_add`; epsilon is 1e-5."""
    import torch.nn.functional as F

    total = F.dropout(x + bias) + residual
    return F.layer_norm(total, (), weight, shift)


def bias_dropout_add_norm_of(epsilon: float) -> Callable[..., Any]:
    """Returns `bias_dropout_add_norm` with this epsilon: BERT's is 1e-12."""
    import torch.nn.functional as F

    def pattern(x: Any, bias: Any, residual: Any, weight: Any, shift: Any) -> Any:
        total = F.dropout(x + bias) + residual
        return F.layer_norm(total, (), weight, shift, epsilon)

    return pattern


def rows_bias_dropout_add(x: Any, bias: Any, residual: Any) -> Any:
    """
    `bias_dropout_add` of [rows, features], as GPT-2's linear layers give them, and a
    residual of [batch, sequence, features].
    """
    import torch.nn.functional as F

    return F.dropout(op("Reshape", x + bias)) + residual


def cross_entropy(scores: Any, labels: Any) -> Any:
    """
    The mean cross-entropy. To `decompose()` it gives the sum of the losses, which a kernel
    computes on parts of the rows, and the division.
    """
    import torch.nn.functional as F

    return F.cross_entropy(scores, labels)


def head_cross_entropy(x: Any, weight: Any, labels: Any) -> Any:
    """
    The mean cross-entropy of a language model's head without a bias, a linear layer of
    [batch, sequence, features]; labels are one for each row.
    """
    import torch.nn.functional as F

    return F.cross_entropy(op("Reshape", F.linear(x, weight)), labels)


def head_bias_cross_entropy(x: Any, weight: Any, bias: Any, labels: Any) -> Any:
    """The same of a head with a bias."""
    import torch.nn.functional as F

    return F.cross_entropy(op("Reshape", F.linear(x, weight, bias)), labels)


def head_cross_entropy_sum(x: Any, weight: Any, labels: Any) -> Any:
    """The sum of the losses of such a head without a bias."""
    import torch.nn.functional as F

    scores = op("Reshape", F.linear(x, weight))
    return F.cross_entropy(scores, labels, reduction="sum")


def head_bias_cross_entropy_sum(x: Any, weight: Any, bias: Any, labels: Any) -> Any:
    """The sum of the losses of such a head with a bias."""
    import torch.nn.functional as F

    scores = op("Reshape", F.linear(x, weight, bias))
    return F.cross_entropy(scores, labels, reduction="sum")


def linear_cross_entropy(x: Any, weight: Any, labels: Any) -> Any:
    """The mean cross-entropy of a linear layer without a bias."""
    import torch.nn.functional as F

    return F.cross_entropy(op("Gemm", x, weight, transB=1), labels)
