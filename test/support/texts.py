"""A small language model that scenarios train, and texts for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH, HEADS, LONGEST = 24, 16, 4, 64


class Block(nn.Module):
    """Attention and a network of two layers, with norms before them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        normal = self.norm_1(x)
        q, k, v = (
            layer(normal).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        found = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = x + self.drop(self.out(found.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm_2(x)))))


class Language(nn.Module):
    """
    A language model. With `documents`, the number of the document of each word in its row,
    words see only words of their own document, and `places` count in it.
    """

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(
        self,
        words: torch.Tensor,
        places: torch.Tensor | None = None,
        documents: torch.Tensor | None = None,
    ) -> torch.Tensor:
        length = words.shape[1]
        if places is None:
            places = torch.arange(length, device=words.device)
        mask = None
        if documents is not None:
            seen = torch.ones(length, length, dtype=torch.bool, device=words.device)
            same = documents[:, :, None] == documents[:, None, :]
            mask = (same & seen.tril())[:, None]
        x = self.words(words) + self.places(places)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def cross_entropy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over the words whose label is not -100."""
    return F.cross_entropy(output.flatten(0, -2), labels.flatten())


def text(samples: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns words and those that follow them, of which some do not count."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (samples, length + 1), generator=generator)
    labels = words[:, 1:].clone()
    labels[0, : length // 2] = -100
    return words[:, :-1], labels
