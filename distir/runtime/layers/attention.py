"""ONNX's attention with caches, windows and other options, and its recurrent forms."""

import math

import torch
import torch.nn.functional as F

from ..devices import here


def scaled_dot_product_attention(query, key, value, mask=None, **options):
    """Returns PyTorch's attention. On CPUs, it is computed in float32."""
    if query.is_cuda:
        return F.scaled_dot_product_attention(query, key, value, mask, **options)
    wide = [x.to(torch.float32) for x in (query, key, value)]
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(torch.float32)
    out = F.scaled_dot_product_attention(*wide, mask, **options)
    return out.to(query.dtype)


def with_causal(mask, queries, keys):
    """
    Returns `mask`, changed so that it also hides the keys after each query's position.
    """
    seen = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    if mask.dtype == torch.bool:
        return mask & seen
    return torch.where(seen, mask, -torch.inf)


def attention(
    query,
    key,
    value,
    mask=None,
    past_key=None,
    past_value=None,
    valid_keys=None,
    is_causal=False,
    scale=None,
    softcap=0.0,
    left_window_size=-1,
    right_window_size=-1,
    precision=None,
    scores_mode=0,
    flat=False,
):
    """
    Returns attention over (batch, heads, sequence, features): the output, the keys and
    values including the past, and the scores. `scores_mode` selects the scores: 0 for
    raw scores, 1 after the soft cap, 2 after the mask, 3 after the softmax. With
    `flat`, the output is (batch, sequence, heads * features). The output is 0 for a
    query that sees no key.
    """
    dtype = query.dtype
    if past_key is not None:
        key, value = torch.cat((past_key, key), 2), torch.cat((past_value, value), 2)
    queries, keys = query.shape[2], key.shape[2]
    bias = torch.zeros(queries, keys, dtype=dtype, device=here())
    if mask is not None:
        missing = keys - mask.shape[-1]
        if mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, -torch.inf).to(dtype)
        if missing > 0:
            mask = F.pad(mask, [0, missing], value=-torch.inf)
        bias = bias + mask
    # How far the first query lies behind the first key, per batch entry.
    if past_key is not None:
        offset = torch.tensor(past_key.shape[2], device=here())
    elif valid_keys is not None:
        offset = (valid_keys.reshape(-1, 1, 1, 1) - queries).to(torch.int64)
    else:
        offset = torch.tensor(0, device=here())
    behind = (
        torch.arange(queries, device=here()).unsqueeze(1)
        + offset
        - torch.arange(keys, device=here())
    )
    seen = torch.ones((), dtype=torch.bool, device=here())
    if is_causal:
        seen = seen & (behind >= 0)
    if left_window_size >= 0:
        seen = seen & (behind <= left_window_size)
    if right_window_size >= 0:
        seen = seen & (-behind <= right_window_size)
    if valid_keys is not None:
        seen = seen & (
            torch.arange(keys, device=here()) < valid_keys.reshape(-1, 1, 1, 1)
        )
    bias = torch.where(seen, bias, -torch.inf).to(dtype)
    repeats = query.shape[1] // key.shape[1]
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    # Scaling both sides by the root keeps half precision in range.
    root = torch.tensor(math.sqrt(scale), device=here()).to(dtype)
    wide_key = key.repeat_interleave(repeats, 1) if repeats > 1 else key
    wide_value = value.repeat_interleave(repeats, 1) if repeats > 1 else value
    scores = (query * root) @ (wide_key * root).transpose(2, 3)
    capped = softcap * torch.tanh(scores / softcap) if softcap else scores
    biased = capped + bias
    weights = F.softmax(biased, -1, dtype=precision or dtype)
    blind = (bias == -torch.inf).all(-1, keepdim=True)
    weights = torch.where(blind, 0, weights)
    shown = (scores, capped, biased, weights)[scores_mode].to(dtype)
    out = weights.to(dtype) @ wide_value
    if flat:
        out = out.transpose(1, 2).flatten(2)
    return out, key, value, shown


def rotary_embedding(x, cos, sin, positions=None, heads=0, interleaved=False, width=0):
    """
    Returns `x` with pairs of features rotated by angles that grow with the position.
    `cos` and `sin` are the cosines and sines of the angles. With `width` above 0, only
    the first `width` features are rotated.
    """
    flat = x.dim() == 3
    if flat:
        x = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    width = width or x.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    real, imaginary = first * cos - second * sin, first * sin + second * cos
    if interleaved:
        turned = torch.stack((real, imaginary), -1).flatten(-2)
    else:
        turned = torch.cat((real, imaginary), -1)
    out = torch.cat((turned, rest), -1)
    return out.transpose(1, 2).flatten(2) if flat else out


def linear_attention(
    query, key, value, state, decay, beta, heads, key_heads, scale, rule
):
    """
    Returns the output and the last state of attention as a recurrence. The state is
    (batch, heads, keys, values). Each step decays the state if `rule` contains "gated",
    corrects the value by the state's prediction if `rule` contains "delta", adds key
    and value, and reads the state with the query.
    """

    def by_head(x, count):
        return x.unflatten(-1, (count, -1)).transpose(1, 2).to(torch.float32)

    dtype = query.dtype
    q, k, v = by_head(query, heads), by_head(key, key_heads), by_head(value, key_heads)
    state_dtype = dtype if state is None else state.dtype
    if state is None:
        state = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3], device=here())
    state = state.to(torch.float32)
    if decay is not None:
        decay = by_head(decay, key_heads)
    if beta is not None:
        beta = by_head(beta, beta.shape[-1])
    scale = scale or 1 / math.sqrt(q.shape[3])
    outputs = []
    for step in range(q.shape[2]):
        key_now, value_now = k[:, :, step], v[:, :, step]
        if "gated" in rule:
            state = state * decay[:, :, step].exp().unsqueeze(-1)
        if "delta" in rule:
            known = (key_now.unsqueeze(2) @ state).squeeze(2)
            value_now = beta[:, :, step] * (value_now - known)
        state = state + key_now.unsqueeze(-1) * value_now.unsqueeze(-2)
        read = state.repeat_interleave(heads // key_heads, 1)
        outputs.append(scale * (q[:, :, step].unsqueeze(2) @ read).squeeze(2))
    out = torch.stack(outputs, 2).transpose(1, 2).flatten(2)
    return out.to(dtype), state.to(state_dtype)


def causal_convolution(x, weight, bias, past, silu=False):
    """
    Convolves each channel of `x` along time, from earlier steps to later ones. `past`
    holds the steps before the first step of `x`. Returns two tensors: the convolution,
    with SiLU applied if `silu`, and the last steps of the input, which are `past` for
    the next call.
    """
    width = weight.shape[2]
    if past is None:
        past = torch.zeros(
            x.shape[0], x.shape[1], width - 1, dtype=x.dtype, device=here()
        )
    padded = torch.cat((past, x), 2)
    out = F.conv1d(padded, weight, bias, groups=x.shape[1])
    if silu:
        out = F.silu(out)
    return out, padded[:, :, padded.shape[2] - (width - 1) :]
