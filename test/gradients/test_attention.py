"""Gradients of fused attention."""

import math

import numpy as np
import pytest
import torch
from gradients.harness import GradientCase, backward_program, check, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import tries

from distir.errors import DistIRError


def reference(heads=None, is_causal=False, scale=None, softcap=None):
    """Attention written out, over (batch, heads, length, size) or packed."""

    def by_head(x, count):
        return x if heads is None else x.unflatten(-1, (count, -1)).transpose(1, 2)

    def run(q, k, v, mask=None):
        query_heads, key_heads = heads or (q.shape[1], k.shape[1])
        q, k, v = by_head(q, query_heads), by_head(k, key_heads), by_head(v, key_heads)
        k, v = (x.repeat_interleave(query_heads // key_heads, 1) for x in (k, v))
        factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        scores = q @ k.transpose(2, 3) * factor
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        elif mask is not None:
            scores = scores + mask
        if is_causal:
            seen = torch.ones(scores.shape[2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        out = scores.softmax(-1) @ v
        return out if heads is None else out.transpose(1, 2).flatten(2)

    return run


def attention_case(q, k, v, mask=None, *, constant=False, heads=None, **attributes):
    """A case on operands of these shapes; `mask` is an array or a shape."""
    inputs = [normal(*q), normal(*k, seed=1), normal(*v, seed=2)]
    if mask is not None:
        inputs.append(normal(*mask, seed=3) if isinstance(mask, tuple) else mask)
    if heads is not None:
        attributes |= {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    named = ("is_causal", "scale", "softcap")
    run = reference(heads, *(attributes.get(name) for name in named))
    constants = frozenset([3] if constant else [])
    return GradientCase("Attention", inputs, attributes, constants, torch=run)


SEEN = np.array([[True, False, True], [True, True, False]])
HIDDEN = np.where(SEEN, 0.0, -np.inf)

CASES = [
    attention_case((2, 2, 2, 3), (2, 2, 3, 3), (2, 2, 3, 2)),
    attention_case((1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), is_causal=1),
    attention_case((1, 2, 2, 2), (1, 2, 4, 2), (1, 2, 4, 2), is_causal=1, scale=0.25),
    attention_case((1, 4, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2)),
    attention_case((1, 4, 2, 2), (1, 1, 3, 2), (1, 1, 3, 3), is_causal=1),
    attention_case((1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2), SEEN),
    attention_case((2, 2, 2, 2), (2, 2, 3, 2), (2, 2, 3, 2), SEEN[:, None, None]),
    attention_case((1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2), HIDDEN, constant=True),
    attention_case((1, 4, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2), (2, 3)),
    attention_case((2, 2, 2, 2), (2, 2, 3, 2), (2, 2, 3, 2), (2, 1, 1, 3)),
    attention_case((1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), (2, 3, 3), is_causal=1),
    attention_case((1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), (2, 1, 3), is_causal=1),
    attention_case((1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), SEEN[:1], is_causal=1),
    attention_case((2, 2, 4), (2, 3, 4), (2, 3, 6), heads=(2, 2)),
    attention_case((1, 2, 8), (1, 3, 4), (1, 3, 2), SEEN, heads=(4, 2), scale=0.25),
    attention_case((1, 2, 8), (1, 2, 4), (1, 2, 4), (4, 2, 2), heads=(4, 2), is_causal=1),
    attention_case((1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), softcap=0.5),
    attention_case((1, 4, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), (3, 3), softcap=2.0, is_causal=1),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


@settings(max_examples=tries(15), deadline=None)
@given(*[st.integers(1, 3)] * 7, st.booleans(), st.booleans())
def test_random_sizes(batch, heads, group, queries, keys, size, value, causal, packed):
    shapes = [(heads * group, queries, size), (heads, keys, size), (heads, keys, value)]
    if packed:
        flat = [(batch, length, count * n) for count, length, n in shapes]
        counts = (heads * group, heads)
        check(attention_case(*flat, heads=counts, is_causal=int(causal)))
    else:
        full = [(batch, *s) for s in shapes]
        check(attention_case(*full, is_causal=int(causal)))


def test_other_forms_are_refused():
    case = attention_case((1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2), left_window_size=1)
    with pytest.raises(DistIRError, match="attention with a window"):
        backward_program(case, frozenset([0]))


def test_short_masks_are_refused():
    case = attention_case((1, 2, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2), (2, 1))
    with pytest.raises(DistIRError, match="a mask for fewer keys"):
        backward_program(case, frozenset([0]))
