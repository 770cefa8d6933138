"""
Patterns for `find` of what kernels often replace: `layer.find(patterns.attention)`.

`distir import` and the builders make one op of attention, so that its pattern is one op
too: of queries, keys and values of four dimensions, or of three, in which heads are packed.
"""

from __future__ import annotations

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
    """Layer normalisation of a sum, with an epsilon of 1e-5."""
    import torch.nn.functional as F

    return F.layer_norm(x + residual, (), weight, shift)


def bias_add_norm(x: Any, bias: Any, residual: Any, weight: Any, shift: Any) -> Any:
    """Layer normalisation of a sum with a bias, with an epsilon of 1e-5."""
    import torch.nn.functional as F

    return F.layer_norm(x + bias + residual, (), weight, shift)


def linear_cross_entropy(x: Any, weight: Any, labels: Any) -> Any:
    """The mean of the cross-entropies of rows of a linear layer without a bias."""
    import torch.nn.functional as F

    return F.cross_entropy(op("Gemm", x, weight, transB=1), labels)
