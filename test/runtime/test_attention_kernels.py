"""
How training's attention calls PyTorch's kernels for CUDA, whose formulas stand for them here:
heads of any size, groups of heads, masks, and sums of exponentials as these kernels lay them out.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.thoroughness import chosen

from distir.runtime.layers import fused_attention

Tensors = tuple[torch.Tensor, ...]
ROWS = 32
"""The memory-efficient kernel keeps sums of exponentials for groups of so many queries."""


def scores(
    query: torch.Tensor,
    key: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> torch.Tensor:
    found = query @ key.transpose(2, 3) * scale
    if bias is not None:
        found = found + bias
    if is_causal:
        seen = torch.ones(found.shape[2:], dtype=torch.bool).tril()
        found = found.masked_fill(~seen, -torch.inf)
    return found


def forward(given: Tensors, bias: Any, is_causal: bool, scale: float) -> Tensors:
    query, key, value = given
    shown = scores(query, key, bias, is_causal, scale)
    return shown.softmax(-1) @ value, shown.logsumexp(-1)


def backward(
    given: Tensors, sums: torch.Tensor, bias: Any, is_causal: bool, scale: float
) -> Tensors:
    dy, query, key, value, out = given
    weights = (scores(query, key, bias, is_causal, scale) - sums[..., None]).exp()
    own = dy @ value.transpose(2, 3) - (dy * out).sum(-1, keepdim=True)
    dscores = weights * own * scale
    return dscores @ key, dscores.transpose(2, 3) @ query, weights.transpose(2, 3) @ dy


def flash(*given: Any, scale: float) -> Any:
    *tensors, dropout, is_causal, debug = given
    assert (dropout, debug) == (0.0, False)
    assert all(x.shape[3] % 8 == 0 and x.shape[1] == 4 for x in tensors)
    return (
        *forward((*tensors,), None, is_causal, scale),
        None,
        None,
        0,
        0,
        None,
        None,
        None,
    )


def flash_backward(*given: Any, scale: float) -> Any:
    tensors, sums, *rest = given[:5], *given[5:]
    assert all(x.shape[3] % 8 == 0 for x in tensors)
    assert rest[2:4] == [tensors[1].shape[2], tensors[2].shape[2]]
    return backward(tensors, sums, None, rest[5], scale)


def efficient(*given: Any, scale: float) -> Any:
    *tensors, bias, keeps, dropout, is_causal = given
    assert (keeps, dropout) == (True, 0.0)
    out, sums = forward((*tensors,), bias, is_causal, scale)
    padded = sums.new_full((*sums.shape[:2], ROWS), torch.inf)
    padded[..., : sums.shape[2]] = sums
    return out, padded, None, None


def efficient_backward(*given: Any, scale: float) -> Any:
    dy, query, key, value, bias, out, sums, _, _, dropout, asked, is_causal = given
    assert (dropout, asked) == (0.0, [True, True, True, False])
    queries = query.shape[2]
    assert sums.shape[2] == ROWS and bool((sums[..., queries:] == torch.inf).all())
    tensors, own = (dy, query, key, value, out), sums[..., :queries]
    return *backward(tensors, own, bias, is_causal, scale), None


NAMES = {
    "flash": (flash, flash_backward),
    "efficient": (efficient, efficient_backward),
}


CASES = [
    (kernel, size, form, key_heads)
    for kernel, forms in (
        ("flash", ("causal", "plain")),
        ("efficient", ("causal", "plain", "bool", "float")),
    )
    for size, form, key_heads in product([8, 12], forms, [4, 2])
]
QUICK = [
    ("flash", 12, "causal", 2),
    ("flash", 8, "plain", 4),
    ("efficient", 8, "bool", 4),
    ("efficient", 12, "causal", 2),
]


@pytest.mark.parametrize(("kernel", "size", "form", "key_heads"), chosen(CASES, QUICK))
def test_the_kernels_are_called_as_their_formulas_say(
    kernel: str, size: int, form: str, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    query, dy = torch.randn(2, 2, 4, 6, size)
    key, value = torch.randn(2, 2, key_heads, 6, size)
    mask = None
    if form == "bool":
        mask = torch.rand(2, 1, 6, 6) < 0.5
        mask |= torch.eye(6, dtype=torch.bool)
    if form == "float":
        mask = torch.randn(1, 4, 6, 6)
    given, options = (query, key, value, mask), {"is_causal": form == "causal"}

    def run() -> Tensors:
        out, sums = fused_attention.attention(*given, **options)
        found = fused_attention.attention_grad(dy, out, sums, *given, **options)
        return out, sums, *found

    expected = run()
    one, other = NAMES[kernel]
    name = f"_scaled_dot_product_{kernel}_attention"
    calls = {name: one, f"{name}_backward": other}
    monkeypatch.setattr(fused_attention, "aten", SimpleNamespace(**calls))
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    taken = Mock(return_value=kernel == "flash")
    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", taken)
    taken = Mock(return_value=True)
    monkeypatch.setattr(torch.backends.cuda, "can_use_efficient_attention", taken)
    for found, wanted in zip(run(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
