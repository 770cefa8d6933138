"""Words are generated with cached keys and values between the steps of a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import (
    EXACT,
    SAMPLES,
    STEPS,
    Parallel,
    Plain,
    Trained,
    check,
)
from torch import nn

from distir.parallel.parallelize import parallelize

WORDS, WIDTH, LENGTH = 20, 16, 7

PLANS: list[dict[str, Any]] = [dict(d=2), dict(t=2), dict(d=2, zero=3)]


class Decoder(nn.Module):
    """Returns logits, keys and values; takes those of earlier words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(
        self,
        words: torch.Tensor,
        keys: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        x = self.words(words)
        q, k, v = self.q(x), self.k(x), self.v(x)
        if keys is not None and values is not None:
            k, v = torch.cat([keys, k], 1), torch.cat([values, v], 1)
        causal = keys is None
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.head(x), k, v


def decoding(side: Plain) -> Trained:
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=generator)
    source = Decoder()
    module = decoder = side.make(source, text[:, :-1])
    if isinstance(side, Parallel):
        cache = torch.zeros(SAMPLES, 4, WIDTH, dtype=side.dtype)
        example = text[:, :1], cache, cache
        decoder = parallelize(source, example, shared_with=[module], **side.plan)
    optimizer = side.optimizer(module.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits, *_ = module.train()(side.part(text[:, :-1]))
        loss = F.cross_entropy(logits.flatten(0, 1), side.part(text[:, 1:]).flatten())
        loss.backward()
        optimizer.step()
        losses.append(side.mean(loss))
        if step % 2 == 0:
            module.eval()
            decoder.eval()
            with torch.no_grad():
                logits, *cache = module(side.part(text[:, :4]))
                for _ in range(3):
                    word = logits[:, -1:].argmax(-1)
                    logits, *cache = decoder(word, *cache)
                losses.append(side.mean(logits.square().mean()))
    return Trained(losses, [module])


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_cached_decoding(plan: dict[str, Any]) -> None:
    check(__file__, "decoding", EXACT, plan)
