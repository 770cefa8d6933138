"""The gradient of attention, by the backward of whichever kernel PyTorch takes for it."""

import torch
import torch.nn.functional as F

from . import attention


def attention_grad(dy, query, key, value, mask=None, heads=None, **options):
    """
    The gradients of query, key and value. `heads`: the numbers of query and key heads
    where operands are (batch, length, heads * size). The forward runs again.
    """

    def by_head(x, count):
        return x if heads is None else x.unflatten(-1, (count, -1)).transpose(1, 2)

    query_heads, key_heads = heads or (query.shape[1], key.shape[1])
    if query_heads == key_heads:
        operands = [by_head(x, query_heads) for x in (dy, query, key, value)]
        found = _by_flash_kernel(*operands, mask, **options)
        if found is not None:
            if heads is not None:
                found = [x.transpose(1, 2).flatten(2) for x in found]
            return tuple(found)
    # Tensors of inference mode cannot take part in autograd, copies of them can.
    with torch.inference_mode(False), torch.enable_grad():
        inputs = [
            (x.clone() if x.is_inference() else x.detach()).requires_grad_()
            for x in (query, key, value)
        ]
        if mask is not None:
            lengths = (
                by_head(query, query_heads).shape[2],
                by_head(key, key_heads).shape[2],
            )
            mask = mask.expand(torch.broadcast_shapes(mask.shape, lengths)).clone()
        half = query.dtype in (torch.float16, torch.bfloat16)
        forward = (attention if half else F).scaled_dot_product_attention
        counts = (query_heads, key_heads, key_heads)
        out = forward(
            *(by_head(x, n) for x, n in zip(inputs, counts, strict=True)),
            mask,
            enable_gqa=query_heads != key_heads,
            **options,
        )
        return torch.autograd.grad(out, inputs, by_head(dy, query_heads))


def _by_flash_kernel(
    dy, query, key, value, mask, is_causal=False, scale=None, **others
):
    """
    The gradients by the kernels of the CPU alone, without autograd and the copies that it
    needs; None where PyTorch would not take these, or with further options.
    """
    if others or query.device.type != "cpu" or query.dtype != torch.float32:
        return None
    if mask is not None:
        if mask.dtype == torch.bool:
            hidden = mask.logical_not()
            mask = torch.zeros_like(mask, dtype=query.dtype)
            mask = mask.masked_fill_(hidden, -torch.inf)
        lengths = (query.shape[2], key.shape[2])
        shape = torch.broadcast_shapes(mask.shape, lengths)
        mask = mask if mask.shape == shape else mask.expand(shape).contiguous()
    given = {"is_causal": is_causal, "attn_mask": mask, "scale": scale}
    # 1 is the flash kernel (SDPBackend).
    if torch._fused_sdp_choice(query, key, value, **given) != 1:
        return None
    aten = torch.ops.aten
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, **given
    )
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dy, query, key, value, out, sums, 0.0, **given
    )


def with_causal(mask, queries, keys):
    """A mask that also hides the keys behind each query."""
    seen = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    if mask.dtype == torch.bool:
        return mask & seen
    return torch.where(seen, mask, -torch.inf)
