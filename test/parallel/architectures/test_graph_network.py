"""A graph network: attention over edges, with sums and maxima of segments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import EXACT, SAMPLES, STEPS, Plain, Trained, check
from torch import nn

NODES, EDGES, FEATURES, WIDTH, CLASSES = 7, 15, 6, 12, 3

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(p=2, k=2),
]


class GraphNetwork(nn.Module):
    """Nodes [graphs, n, features], edges [graphs, e, 2], and a mask of nodes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = [(FEATURES, WIDTH), (WIDTH, WIDTH)]
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in widths)
        self.messages = nn.ModuleList(nn.Linear(2 * n, n) for n, _ in widths)
        self.scores = nn.ModuleList(nn.Linear(2 * n, 1) for n, _ in widths)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(
        self, x: torch.Tensor, edges: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        source, target = edges[..., 0], edges[..., 1]
        stages = zip(self.layers, self.messages, self.scores, strict=True)
        for layer, message, score in stages:
            ends = [
                torch.gather(x, 1, end[..., None].expand(-1, -1, x.shape[-1]))
                for end in (source, target)
            ]
            pairs = torch.cat(ends, -1)
            scores = score(pairs).squeeze(-1)
            highest = torch.full_like(mask, -1e9)
            highest = highest.scatter_reduce(1, target, scores.detach(), "amax")
            weights = torch.exp(scores - torch.gather(highest, 1, target))
            sums = torch.zeros_like(mask).scatter_add(1, target, weights)
            weights = weights / (torch.gather(sums, 1, target) + 1e-9)
            sent = message(pairs) * weights[..., None]
            places = target[..., None].expand_as(sent)
            x = torch.relu(layer(x + torch.zeros_like(x).scatter_add(1, places, sent)))
        return self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def graphs(side: Plain) -> Trained:
    x, generator = side.data(0, NODES, FEATURES), torch.Generator().manual_seed(3)
    edges = torch.randint(0, NODES, (SAMPLES, EDGES, 2), generator=generator)
    mask = torch.ones(SAMPLES, NODES, dtype=side.dtype)
    mask[:, 5:] = 0
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    module = side.make(GraphNetwork(), x, edges, mask, loss=F.cross_entropy)
    optimizer = side.optimizer(module.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = x + step, edges, mask, labels
        loss = side.loss(module, F.cross_entropy, *batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, [module])


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_graph_network(plan: dict[str, Any]) -> None:
    check(__file__, "graphs", EXACT, plan)
