"""
The settings of a training run, in DistIR's terms. All training systems share them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from distir.errors import DistIRError


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """
    A training run of a decoder: the model, its precision, the batch and the plan.

    - `layers`, `d_model`, `heads`, `kv_heads`, `head_dim`, `ffn`, `vocab`, `seq`: sizes
      of the model; `completed` replaces 0 by the usual size. `positions` is the length
      of the longest sequence. `experts`, `top_k` and `expert_ffn` describe a mixture of
      experts; `experts` is 0 without one;
    - `mlp`: `gelu` or `swiglu`; `norm`: `layer` or `rms`; `position`: `learned` or
      `rotary`, with the base `theta`; `tied`: whether the output matrix is the
      embedding; `bias`, `qkv_bias`: whether matrix products have biases; `dropout`,
      `attention_dropout`: dropout ratios of residual branches and of attention
      probabilities;
    - `dtype`: f32, bf16 or f16; `gradients_f32`: whether gradients are summed in f32;
      `master`: whether 16-bit parameters have copies in f32; `float8`: the recipe of
      matrix products in narrow floats (`RECIPES` of the `train` dialect), or "" without
      them;
    - `batch`: the sequences of the global batch; `micro_batch`: the sequences that a
      device takes at a time;
    - `t`, `p`, `c`, `e`: degrees of tensor, pipeline, context and expert parallelism;
      `r`: the number of groups; each group holds a whole copy of the values that ZeRO
      splits; `devices`: the devices of the run, `per_node` of them in each node. The
      data-parallel degree `d` follows from the number of devices and these degrees;
    - `overlap`: the kinds of communication that overlap with computation, such as
      `dp,tp,pp,params`;
    - `zero`: the ZeRO stage; `sequence_parallel`, `keep_gathered`, `offload_states`,
      `no_sync`, `context`, `schedule`, `chunks`, `checkpoint`, `expert_axes`: as the
      options of `distir distribute`.
    """

    layers: int = 0
    d_model: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    vocab: int = 0
    seq: int = 0
    positions: int = 0
    experts: int = 0
    top_k: int = 2
    expert_ffn: int = 0
    mlp: str = "gelu"
    norm: str = "layer"
    position: str = "learned"
    theta: float = 10000.0
    tied: bool = True
    bias: bool = True
    qkv_bias: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    dtype: str = "f32"
    gradients_f32: bool = False
    master: bool = True
    float8: str = ""
    batch: int = 0
    micro_batch: int = 1
    t: int = 1
    p: int = 1
    c: int = 1
    e: int = 1
    r: int = 1
    zero: int = 0
    devices: int = 0
    per_node: int = 0
    sequence_parallel: bool = False
    keep_gathered: bool = False
    overlap: str = ""
    offload_states: bool = False
    no_sync: bool = False
    context: str = "gather"
    schedule: str = ""
    chunks: int = 0
    checkpoint: str = "none"
    expert_axes: str = "e"

    @property
    def d(self) -> int:
        """
        The data-parallel degree within a group: the devices divided by all other
        degrees.
        """
        return self.devices // (self.t * self.p * self.c * self.e * self.r)

    @property
    def batch_parts(self) -> int:
        """The number of parts into which devices split each micro-batch."""
        return self.r * self.d * self.e

    @property
    def k(self) -> int:
        """The number of micro-batches."""
        return self.batch // (self.micro_batch * self.batch_parts)

    @property
    def nodes(self) -> int:
        """The number of nodes, rounded up. One node is assumed if `per_node` is 0."""
        return -(-self.devices // (self.per_node or self.devices))

    def completed(self) -> RunSettings:
        """Returns the settings with the usual size in place of each size that is 0."""
        d_model, heads = self.d_model, self.heads
        ffn = self.ffn or (
            4 * d_model if self.mlp == "gelu" else -(-8 * d_model // 3 // 256) * 256
        )
        kv_heads = self.kv_heads or heads
        head_dim = self.head_dim or (d_model // heads if heads else 0)
        expert_ffn = (self.expert_ffn or ffn) if self.experts else 0
        return replace(
            self,
            ffn=ffn,
            kv_heads=kv_heads,
            head_dim=head_dim,
            expert_ffn=expert_ffn,
            positions=self.positions or self.seq,
            per_node=self.per_node or min(self.devices, 8),
        )

    def check(self, what: str) -> None:
        """
        Raises DistIRError if a size is missing, or if the degrees or the batch do not
        fit the devices. `what` names the source of the settings in the message.
        """
        for name, title in NEEDED.items():
            if getattr(self, name) < 1:
                raise DistIRError(f"{what} does not say the {title}; add it")
        model = self.t * self.p * self.c
        degrees = f"tensor {self.t} x pipeline {self.p} x context {self.c}"
        if self.devices < model or self.devices % model:
            raise DistIRError(
                f"{what}: {self.devices} devices cannot be divided into {degrees} = {model}; "
                f"change a degree, or say how many devices the run has with --devices"
            )
        rest = self.devices // model
        if rest % (self.e * self.r):
            raise DistIRError(
                f"{what}: expert parallelism of {self.e} in {self.r} groups does not divide "
                f"the {rest} data-parallel devices, which is the only place where experts "
                f"can be dealt out here; change a degree, or the devices with --devices"
            )
        if self.batch % (self.micro_batch * rest):
            raise DistIRError(
                f"{what}: a global batch of {self.batch} cannot be divided into "
                f"micro-batches of {self.micro_batch} on {rest} data-parallel devices; "
                f"choose a multiple of {self.micro_batch * rest}"
            )
        if self.p > 1 and self.chunks > 1 and self.layers % (self.p * self.chunks):
            raise DistIRError(
                f"{what}: {self.layers} layers cannot be divided into {self.p} pipeline "
                f"ranks of {self.chunks} stages; choose numbers that divide them"
            )


NEEDED = {
    "layers": "number of layers",
    "d_model": "width of the model",
    "heads": "number of attention heads",
    "seq": "length of sequences",
    "vocab": "size of the vocabulary",
    "batch": "global batch",
    "devices": "number of devices",
}
"""The settings without a usable default, with their names in messages."""

_NAMES = [field.name for field in fields(RunSettings)]

MODEL = tuple(_NAMES[: _NAMES.index("dtype")])
"""The names of the settings of the model."""

PRECISION = ("dtype", "gradients_f32", "master", "float8")
"""The names of the settings of the precision."""


def chosen(settings: RunSettings, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the values of the settings in `names`, by name."""
    return {name: getattr(settings, name) for name in names}
