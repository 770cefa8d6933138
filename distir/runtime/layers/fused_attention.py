"""
Attention in training. The forward pass keeps the logarithms of the sums of
exponentials, and the backward pass recomputes the probabilities from these. Both call
the kernels of PyTorch's own attention if one supports the tensors.
"""

import math

import torch
import torch.nn.functional as F

aten = torch.ops.aten


def attention(query, key, value, mask=None, **options):
    """
    Returns the output, and the logarithms of the sums of exponentials [batch, heads,
    queries], which are 0 for a query that sees no key. Operands are [batch, heads,
    length, size], or, if `heads` gives the numbers of query and key heads, [batch,
    length, heads * size]. A boolean mask is true for the keys that a query sees; a
    float mask is added to the scores.
    """
    kernel = Attention(query, key, value, mask, **options)
    out, sums = kernel.forward()
    return kernel.packed(out).to(query.dtype), sums


def attention_grad(dy, out, sums, query, key, value, mask=None, **options):
    """
    Returns the gradients of query, key and value. `out` and `sums` are the results of
    `attention`.
    """
    kernel = Attention(query, key, value, mask, **options)
    dy, out = (kernel.by_head(x, kernel.query.shape[1]) for x in (dy, out))
    found = kernel.backward(dy, out, sums)
    return tuple(kernel.packed(x).to(query.dtype) for x in found)


def placed_attention(
    query_positions, key_positions, query, key, value, mask=None, **options
):
    """
    Returns the output of attention in which a query sees the keys whose position is not
    after the query's, and the logarithms of the sums of exponentials. For a query that
    sees no key, the output is 0 and the logarithm -infinity.
    """
    positions = query_positions, key_positions
    kernel = Attention(query, key, value, mask, positions=positions, **options)
    out, sums = kernel.forward()
    blind = (kernel.mask == -torch.inf).all(-1)
    sums = sums.masked_fill(blind, -torch.inf)
    return kernel.packed(out.masked_fill(blind[..., None], 0)).to(query.dtype), sums


def placed_attention_grad(
    dy,
    out,
    sums,
    query_positions,
    key_positions,
    query,
    key,
    value,
    mask=None,
    **options,
):
    """
    Returns the gradients of query, key and value. `out` and `sums` are the results of
    `placed_attention`.
    """
    sums = sums.masked_fill(sums == -torch.inf, 0)
    positions = query_positions, key_positions
    given = dy, out, sums, query, key, value, mask
    return attention_grad(*given, positions=positions, **options)


def merge_attention(out, sums, other, other_sums):
    """
    Merges attention over a part of the keys (`out`, `sums`) with attention over the
    remaining keys (`other`, `other_sums`). Returns the output and the logarithms of the
    sums of exponentials over all keys.
    """
    total = torch.logaddexp(sums, other_sums)
    known = total.masked_fill(total == -torch.inf, 0)
    shares = [(own - known).exp_()[..., None] for own in (sums, other_sums)]
    if out.dim() == 3:
        heads = sums.shape[1]
        parts = [x.unflatten(-1, (heads, -1)) for x in (out, other)]
        merged = sum(x * s.transpose(1, 2) for x, s in zip(parts, shares, strict=True))
        merged = merged.flatten(2)
    else:
        merged = out * shares[0] + other * shares[1]
    return merged.to(out.dtype), total


@torch.compiler.assume_constant_result
def _kernel_of_shapes(query, key, dtype, device, has_mask, is_causal):
    """
    Returns the result of `_kernel_of` for tensors with the shapes of `query` and `key`:
    the name of a CUDA kernel, or an empty string. `torch.compile` calls the function
    once and keeps the result, because it cannot trace the call.
    """
    row = torch.empty(query[3], dtype=dtype, device=device)
    mask = row[0].expand(query[2], key[2]) if has_mask else None
    return _kernel_of(
        row.expand(query), row.expand(key), row.expand(key), mask, is_causal
    )


def _kernel_of(query, key, value, mask, is_causal):
    """
    Returns the name of the CUDA kernel that supports the tensors, "flash" or
    "efficient", or an empty string if there is none.
    """
    # PyTorch's own choice may be a third kernel (cuDNN's).
    known = torch.backends.cuda
    given = known.SDPAParams(query, key, value, mask, 0.0, is_causal, False)
    if known.can_use_flash_attention(given):
        return "flash"
    return "efficient" if known.can_use_efficient_attention(given) else ""


class Attention:
    """
    Attention for given tensors, with methods for the forward and the backward pass.
    """

    def __init__(
        self,
        query,
        key,
        value,
        mask=None,
        heads=None,
        is_causal=False,
        scale=None,
        softcap=None,
        positions=None,
        blocks=None,
    ):
        self.is_packed = heads is not None
        query_heads, key_heads = heads or (0, 0)
        # The CPU's kernels of half precision round more often than the standard allows.
        half = query.dtype in (torch.float16, torch.bfloat16)
        self.wide = torch.float32 if half and not query.is_cuda else query.dtype
        self.query = self.by_head(query, query_heads)
        self.key = self.by_head(key, key_heads)
        self.value = self.by_head(value, key_heads)
        self.scale = 1 / math.sqrt(self.query.shape[3]) if scale is None else scale
        self.softcap = softcap
        self.is_causal = is_causal
        self.mask = None if mask is None else self._added(mask)
        if is_causal and mask is not None and query.is_cuda:
            # CUDA kernels take a mask or a causal flag, not both.
            self.mask = self.mask.masked_fill(self._seen().logical_not(), -torch.inf)
            self.is_causal = False
        if positions is not None:
            self._hide(positions[1] > positions[0][:, None])
        if blocks is not None:
            queries, keys = (
                self._blocks(x.shape[2], *blocks) for x in (self.query, self.key)
            )
            self._hide(queries[:, None] != keys)

    def _hide(self, hidden):
        """
        Hides keys from queries: sets the mask to -infinity where the boolean tensor
        `hidden` [queries, keys] is true.
        """
        if self.mask is None:
            self.mask = torch.zeros((), dtype=self.wide, device=self.query.device)
        self.mask = self.mask.masked_fill(hidden, -torch.inf)

    def _blocks(self, length, count, run):
        """
        Returns the index of the block of each of `length` positions. The positions are
        dealt out to `count` blocks in runs of `run` positions; if `run` is None or 0,
        each block is contiguous.
        """
        places = torch.arange(length, device=self.query.device)
        return places // (run or length // count) % count

    def by_head(self, x, heads):
        """
        Returns `x` as [batch, heads, length, size], converted to the type of the
        computation.
        """
        if self.is_packed:
            x = x.unflatten(-1, (heads, -1)).transpose(1, 2)
        return x.to(self.wide)

    def packed(self, x):
        """
        Returns `x` in the original shape of operands; the inverse of `by_head`, except
        for the element type.
        """
        return x.transpose(1, 2).flatten(2) if self.is_packed else x

    def _added(self, mask):
        """
        Returns `mask` as a mask that is added to the scores, with full query and key
        dimensions.
        """
        lengths = self.query.shape[2], self.key.shape[2]
        if mask.dtype == torch.bool:
            added = torch.zeros_like(mask, dtype=self.wide)
            mask = added.masked_fill_(mask.logical_not(), -torch.inf)
        mask = mask.to(self.wide)
        mask = mask.expand(torch.broadcast_shapes(mask.shape, lengths))
        return mask[None] if mask.dim() == 3 else mask

    def _seen(self):
        """
        Returns booleans [queries, keys] that are true for the keys that a query sees
        under a causal mask.
        """
        lengths = self.query.shape[2], self.key.shape[2]
        return torch.ones(lengths, dtype=torch.bool, device=self.query.device).tril()

    def _kernel(self):
        """
        Returns the name of PyTorch's kernel that supports the tensors, or an empty
        string if there is none.
        """
        if self.softcap is not None or self.query.shape[3] != self.value.shape[3]:
            return ""
        if not self.query.is_cuda:
            return "cpu"
        query, key, value = self._operands()
        if not torch.compiler.is_compiling():
            return _kernel_of(query, key, value, self.mask, self.is_causal)
        shapes = tuple(query.shape), tuple(key.shape)
        has_mask = self.mask is not None
        return _kernel_of_shapes(
            *shapes, query.dtype, query.device, has_mask, self.is_causal
        )

    def forward(self):
        """Returns the output and the logarithms of the sums of exponentials."""
        operands, kernel = self._operands(), self._kernel()
        if kernel == "cpu":
            return aten._scaled_dot_product_flash_attention_for_cpu(
                *operands, 0.0, self.is_causal, attn_mask=self.mask, scale=self.scale
            )
        if kernel == "flash":
            out, sums, *_ = aten._scaled_dot_product_flash_attention(
                *self._padded(operands), 0.0, self.is_causal, False, scale=self.scale
            )
            return out[..., : self.query.shape[3]], sums
        if kernel == "efficient":
            out, sums, _, _ = aten._scaled_dot_product_efficient_attention(
                *operands, self._bias(), True, 0.0, self.is_causal, scale=self.scale
            )
            return out, sums[:, :, : self.query.shape[2]]
        weights, sums = self.probabilities()
        return weights @ self.repeated(self.value), sums

    def probabilities(self):
        """
        Returns the probabilities and the logarithms of the sums of exponentials,
        computed without a fused kernel.
        """
        scores = self._scores()[1]
        sums = scores.to(self._sum_type()).logsumexp(-1)
        sums = sums.masked_fill(sums == -torch.inf, 0)
        return (scores - sums[..., None]).exp_().to(self.wide), sums

    def backward(self, dy, out, sums):
        """Returns the gradients of query, key and value."""
        operands, kernel = (dy, *self._operands()), self._kernel()
        if kernel == "cpu":
            return aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *(*operands, out, sums, 0.0, self.is_causal),
                attn_mask=self.mask,
                scale=self.scale,
            )
        # The state of random numbers, none of which are drawn.
        lengths = self.query.shape[2], self.key.shape[2]
        none = torch.empty(2, dtype=torch.uint64, device=dy.device)
        if kernel == "flash":
            found = aten._scaled_dot_product_flash_attention_backward(
                *(*self._padded((*operands, out)), sums, None, None, *lengths),
                *(0.0, self.is_causal, none, none[:1]),
                scale=self.scale,
            )
            found = [x[..., : self.query.shape[3]] for x in found]
        if kernel == "efficient":
            # Rows come in groups of 32; rows after the last query have infinite sums.
            padded = F.pad(sums, [0, -lengths[0] % 32], value=torch.inf)
            none = torch.zeros((), dtype=torch.int64, device=dy.device)
            bias = self._bias()
            found = aten._scaled_dot_product_efficient_attention_backward(
                *(*operands, bias, out, padded, none, none, 0.0),
                *([True, True, True, False], self.is_causal),
                scale=self.scale,
            )[:3]
        if not kernel:
            found = self.written_out(dy, out, sums)
        dquery, dkey, dvalue = found
        return dquery, self.over_groups(dkey), self.over_groups(dvalue)

    def _operands(self):
        """
        Returns query, key and value for a kernel. On GPUs, keys and values are repeated
        for each query head; only the CPU kernel supports fewer key heads than query
        heads.
        """
        if not self.query.is_cuda:
            return self.query, self.key, self.value
        return self.query, self.repeated(self.key), self.repeated(self.value)

    def _padded(self, tensors):
        """
        Returns the tensors with their head size padded to a multiple of 8, as the flash
        kernel needs.
        """
        room = -self.query.shape[3] % 8
        return [F.pad(x, [0, room]) for x in tensors] if room else tensors

    def written_out(self, dy, out, sums, factors=None):
        """
        Returns the gradients of query, key and value without a fused kernel. The
        gradients of keys and values are per query head. `factors`, if given, are the
        dropout factors by which the forward pass multiplied the probabilities.
        """
        key, value = self.repeated(self.key), self.repeated(self.value)
        capped, scores = self._scores()
        weights = (scores - sums[..., None]).exp_().to(self.wide)
        dscores = self._product(dy, value.transpose(2, 3))
        used = weights
        if factors is not None:
            dscores, used = dscores * factors, weights * factors
        along = (dy * out).sum(-1, keepdim=True, dtype=dscores.dtype)
        dscores = weights * (dscores - along) * self.scale
        if self.softcap is not None:
            dscores = dscores * (1 - (capped / self.softcap).square())
        dscores = dscores.to(self.wide)
        dkey = dscores.transpose(2, 3) @ self.query
        return dscores @ key, dkey, used.transpose(2, 3) @ dy

    def _bias(self):
        """
        Returns the mask for the memory-efficient kernel, expanded to every batch and
        head and aligned, or None without a mask.
        """
        if self.mask is None:
            return None
        scores = *self.query.shape[:3], self.key.shape[2]
        # Rows begin at multiples of 16 elements.
        room = -scores[3] % 16
        if not room:
            return self.mask.expand(scores)
        return F.pad(self.mask, [0, room])[..., : scores[3]].expand(scores)

    def repeated(self, x):
        """Returns keys or values `x` repeated for each query head."""
        groups = self.query.shape[1] // x.shape[1]
        return x if groups == 1 else x.repeat_interleave(groups, 1)

    def over_groups(self, x):
        """
        Returns `x` [batch, query heads, ...] summed over the query heads of each key
        head.
        """
        key_heads = self.key.shape[1]
        return x if x.shape[1] == key_heads else x.unflatten(1, (key_heads, -1)).sum(2)

    def _product(self, first, second):
        """
        Returns the product of two tensors. For half precision, the result is in
        float32, as in fused kernels.
        """
        if first.dtype in (torch.float32, torch.float64):
            return first @ second
        parts = first.flatten(0, 1), second.flatten(0, 1)
        found = torch.bmm(*parts, out_dtype=torch.float32)
        return found.unflatten(0, first.shape[:2])

    def _scores(self):
        """
        Returns two tensors of scores: without and with the mask, both after scaling and
        soft cap.
        """
        scores = self._product(self.query, self.repeated(self.key).transpose(2, 3))
        scores = scores * self.scale
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh() * self.softcap
        shown = scores if self.mask is None else scores + self.mask
        if self.is_causal:
            shown = shown.masked_fill(self._seen().logical_not(), -torch.inf)
        return scores, shown

    def _sum_type(self):
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32
