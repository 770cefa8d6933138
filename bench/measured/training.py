"""Training steps of GPTs as distributed programs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.frontends.models.basic import build_gpt
from distir.interpreters.simulator import Simulation, simulate
from distir.interpreters.simulator.profiles.profile import Profile
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from measured.clusters import cluster


@dataclass(frozen=True)
class Model:
    """
    A GPT; `fused` has its attention as one kernel, `gradient_dtype` is an option of
    `differentiate`.
    """

    layers: int
    d_model: int
    heads: int
    vocab: int
    seq: int
    dtype: str = "f16"
    dropout: float = 0.0
    fused: bool = False
    gradient_dtype: str = "parameter"

    def flops(self, batch: int, recompute: bool) -> float:
        """
        Returns the floating-point operations of a training step (Narayanan et al., SC'21,
        appendix): those of its matrix products, with those that activation checkpointing
        computes again.
        """
        tokens, h = batch * self.seq, self.d_model
        layer = 24 * tokens * h * h * (1 + self.seq / (6 * h))
        return (4 if recompute else 3) * self.layers * layer + (
            6 * tokens * h * self.vocab
        )


@dataclass(frozen=True)
class Parallelism:
    """The degrees of parallelism (D/T/P/K), and how the step is run."""

    d: int = 1
    t: int = 1
    p: int = 1
    k: int = 1
    zero: int = 0
    checkpoint: str = "none"
    overlap: bool = False
    schedule: str = ""
    chunks: int | None = None
    blocking_sends: bool = False

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.d * self.t * self.p


@cache
def training_step(model: Model, batch: int) -> ModuleOp:
    """Returns the sequential program of a step with Adam."""
    module = build_gpt(
        model.layers,
        model.d_model,
        model.heads,
        model.vocab,
        batch,
        model.seq,
        model.dtype,
        dropout=model.dropout,
        fused_attention=model.fused,
    )
    DifferentiatePass(
        optimizer="adam", dropout_masks="stored", gradient_dtype=model.gradient_dtype
    ).apply(Context(), module)
    return module


def distributed(
    model: Model, batch: int, parallelism: Parallelism, on: ClusterOp
) -> ModuleOp:
    """Returns the distributed step for a global batch."""
    p = parallelism
    module = training_step(model, batch).clone()
    block = module.body.block
    assert block.first_op is not None
    block.insert_op_before(on, block.first_op)
    DistributePass(
        d=p.d,
        t=p.t,
        p=p.p,
        k=p.k,
        zero=p.zero,
        checkpoint=p.checkpoint,
        schedule=p.schedule,
        chunks=p.chunks,
        stages=("uniform",) if p.p > 1 and not model.layers % p.p else (),
        overlap=p.overlap,
        blocking_sends=p.blocking_sends,
    ).apply(Context(), module)
    return module


def simulated(
    model: Model,
    batch: int,
    parallelism: Parallelism,
    on: ClusterOp,
    profile: str | Profile,
) -> Simulation:
    """Returns the simulation of a step."""
    return simulate(distributed(model, batch, parallelism, on), profiles=(profile,))


@dataclass(frozen=True)
class Step:
    """Simulates a step, on as many devices of a kind as it needs."""

    model: Model
    batch: int
    parallelism: Parallelism
    gpu: str
    profile: str

    def __call__(self) -> Simulation:
        on = cluster(self.gpu, self.parallelism.devices)
        return simulated(self.model, self.batch, self.parallelism, on, self.profile)
