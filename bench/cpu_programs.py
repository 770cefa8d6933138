"""
The programs of `bench/cpu_runs.py`: models of several sizes, distributed over two ranks in
every way that DistIR knows, by the ordinary pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.programs import replace_cluster


@dataclass(frozen=True)
class Model:
    """A model and its batch: an MLP if `heads` is 0, else a GPT."""

    layers: int
    width: int
    batch: int
    heads: int = 0
    vocab: int = 0
    seq: int = 0

    @property
    def name(self) -> str:
        size = f"{self.layers}x{self.width} b{self.batch}"
        return f"gpt {size} s{self.seq} v{self.vocab}" if self.heads else f"mlp {size}"

    def training_step(self) -> ModuleOp:
        """Returns a step with AdamW, on one device."""
        if self.heads:
            module = build_gpt(
                self.layers, self.width, self.heads, self.vocab, self.batch, self.seq
            )
            loss = "cross_entropy"
        else:
            module, loss = build_mlp(self.layers, self.width, self.batch), "mse"
        DifferentiatePass(loss=loss, optimizer="adamw").apply(Context(), module)
        return module


MODELS = (
    Model(6, 256, 128),
    Model(6, 512, 64),
    Model(4, 768, 256),
    Model(4, 1024, 32),
    Model(2, 128, 8, heads=4, vocab=512, seq=64),
    Model(4, 256, 8, heads=8, vocab=1024, seq=32),
    Model(2, 384, 16, heads=6, vocab=2048, seq=32),
    Model(2, 256, 8, heads=4, vocab=512, seq=128),
)

DISTRIBUTIONS = {
    "d=2": DistributePass(d=2),
    "d=2 k=4": DistributePass(d=2, k=4),
    "d=2 zero=1": DistributePass(d=2, zero=1),
    "d=2 zero=2": DistributePass(d=2, zero=2),
    "d=2 zero=3": DistributePass(d=2, zero=3),
    "d=2 checkpoint": DistributePass(d=2, checkpoint="full"),
    "t=2": DistributePass(t=2),
    "t=2 checkpoint": DistributePass(t=2, checkpoint="full"),
    "p=2 k=2": DistributePass(p=2, k=2),
    "p=2 k=4": DistributePass(p=2, k=4),
    "p=2 k=4 gpipe": DistributePass(p=2, k=4, schedule="gpipe"),
    "p=2 k=4 zb-h1": DistributePass(p=2, k=4, schedule="zb-h1"),
    "p=2 k=4 checkpoint": DistributePass(p=2, k=4, checkpoint="full"),
}
"""The distributions. A batch of 4 has no 8 micro-batches, so 8 are for larger ones only."""

ALONE = {
    "d=1": DistributePass(),
    "d=1 checkpoint": DistributePass(checkpoint="full"),
    "d=1 k=4": DistributePass(k=4),
}
"""What one device can do."""


@dataclass(frozen=True)
class Case:
    """A model, distributed."""

    model: Model
    distribution: str

    def distributed(self, step: ModuleOp, cluster: ClusterOp) -> ModuleOp:
        """
        Returns the distributed program of the model's training step, with a message for
        each tensor.
        """
        module = step.clone()
        replace_cluster(module, cluster.clone())
        known = {**DISTRIBUTIONS, **ALONE}[self.distribution]
        distribute = replace(known, buckets=False)
        distribute.apply(Context(), module)
        return module


def cases() -> list[Case]:
    """Returns all programs, those of one model next to each other."""
    return [Case(model, name) for model in MODELS for name in DISTRIBUTIONS]
