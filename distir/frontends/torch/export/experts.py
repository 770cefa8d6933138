"""
Exports mixtures of experts of Hugging Face's models as ops of the `train` dialect.

The modules of these models compute experts by loops, gathered matrices or grouped
products. PyTorch's exporter can write only gathered matrices, one for each token. All
modules get their implementation of experts from one interface. During an export, DistIR
gives them an implementation that writes nodes of DistIR's domain, which the importer
reads as ops.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from distir.frontends.onnx.names import TRAIN_DOMAIN
from distir.frontends.torch.export.functions import train_node

_MODULE = "transformers.integrations.moe"


@dataclass(frozen=True)
class Way:
    """
    The sizes of a mixture of experts. There are `groups` groups of `tokens` tokens, and
    each token makes `choices` choices out of `experts` experts. An expert takes at most
    `capacity` choices of a group. A token may choose the same expert several times.
    """

    experts: int
    groups: int
    tokens: int
    choices: int
    capacity: int

    def places(self, shards: int) -> int:
        """
        Returns the number of rows that a group of tokens needs in each shard if the
        experts are divided into `shards` shards. A row holds one token for one expert.
        """
        own = self.experts // shards
        return min(own * self.capacity, self.tokens * self.choices)

    @property
    def taken(self) -> int:
        """
        The largest number of rows that a group of tokens uses in all shards together.
        """
        return min(self.tokens * self.choices, self.experts * self.capacity)


@contextlib.contextmanager
def experts_as_ops(capacity_factor: float | None, sequences: int) -> Generator[None]:
    """
    A context manager inside which exported mixtures of experts become ops of `train`.
    With a `capacity_factor`, an expert takes at most this factor times its even share
    of a sequence's tokens, and further choices are dropped. With None, an expert takes
    all tokens that choose it. `sequences` is the number of sequences in a batch.
    """
    module: Any = sys.modules.get(_MODULE)
    interface = getattr(module, "ExpertsInterface", None)
    if interface is None:
        yield
        return

    def forward(
        part: Any, tokens: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        count, number, choices = len(tokens), part.num_experts, ids.shape[1]
        if capacity_factor is None or count % sequences:
            way = Way(number, count, 1, choices, choices)
        else:
            length = count // sequences
            even = ceil(capacity_factor * choices * length / number)
            way = Way(number, sequences, length, choices, min(even, length * choices))
        return _forward(way, part, tokens, ids, weights)

    def chosen(*_: object) -> Callable[..., torch.Tensor]:
        return forward

    original = interface.get_interface
    interface.get_interface = chosen
    try:
        yield
    finally:
        interface.get_interface = original


def _forward(
    way: Way,
    part: Any,
    tokens: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """
    Returns the results of a module of experts for `tokens` [tokens, width]. The tokens
    choose the experts `ids` with the weights `weights`, both [tokens, choices].
    """
    count, width = tokens.shape
    groups, choices, places = way.groups, way.choices, way.places(1)
    ids = ids.reshape(groups, -1, choices)
    made: Any = torch.onnx.ops.symbolic_multi_out(
        f"{TRAIN_DOMAIN}::expert_places",
        (ids,),
        {
            "experts": way.experts,
            "capacity": way.capacity,
            "shards": 1,
            "places": places,
        },
        dtypes=(ids.dtype, ids.dtype),
        shapes=(tuple(ids.shape), (1, groups, places)),
        version=1,
    )
    slots, rows = made

    def product(
        x: torch.Tensor, matrices: torch.Tensor, is_transposed: bool
    ) -> torch.Tensor:
        output = matrices.shape[1 if is_transposed else 2]
        return train_node(
            "grouped_product",
            (x, rows, matrices),
            (*x.shape[:3], output),
            x,
            transposed=int(is_transposed),
            taken=way.taken,
        )

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        # What Hugging Face calls transposed is [input, output].
        y = product(x, getattr(part, name), not part.is_transposed)
        if part.has_bias:
            ones = (rows >= 0).to(x.dtype).unsqueeze(-1)
            bias = getattr(part, f"{name}_bias").unsqueeze(1)
            y = y + product(ones, bias, False)
        return y

    x = tokens.reshape(groups, -1, width)
    inside = (1, groups, places, width)
    x = train_node("dispatch", (x, slots, rows), inside, x)
    if part.has_gate:
        x = part._apply_gate(linear(x, "gate_up_proj"))
    else:
        x = part.act_fn(linear(x, "up_proj"))
    x = linear(x, "down_proj")
    if part.has_post_expert_norm:
        x = part.post_expert_norm(x)
    weights = weights.reshape(groups, -1, choices)
    wide = torch.promote_types(x.dtype, weights.dtype)
    x, weights = x.to(wide), weights.to(wide)
    outside = (groups, count // groups, width)
    y = train_node("combine", (x, slots, rows, weights), outside, x)
    return y.reshape(count, width).to(tokens.dtype)
