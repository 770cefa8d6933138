"""
Attention that does not store its scores. PyTorch's own function computes it, and
chooses the kernel.
"""

import torch
import torch.nn.functional as F


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: int = 0,
    head_size: int = 0,
) -> torch.Tensor:
    """
    Returns the attention of `q` to `k` and `v`. If `causal` is not 0, each query sees
    only the keys up to its position. If `head_size` is not 0, heads of that size are
    packed into the last dimension.
    """
    return _attention(q, k, v, None, causal, head_size)


def masked_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    head_size: int = 0,
) -> torch.Tensor:
    """
    Returns the attention of `q` to `k` and `v` with a mask. The mask holds numbers that
    are added to the scores, or booleans that are True for the keys that a query sees.
    If `head_size` is not 0, heads of that size are packed into the last dimension.
    """
    return _attention(q, k, v, mask, 0, head_size)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: int,
    head_size: int,
) -> torch.Tensor:
    if not head_size:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=bool(causal))
    q, k, v = (x.unflatten(-1, (-1, head_size)).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=bool(causal))
    return out.transpose(1, 2).flatten(2)
