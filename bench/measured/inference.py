"""
Latencies of generation with FasterTransformer on A100s: its guide to GPT
(github.com/NVIDIA/FasterTransformer, docs/gpt_guide.md).

The first token comes from a program that reads the whole prompt, every further one from a
decoding step, which reads the keys and values of the tokens before. A step's time grows evenly
with their number, so the first and the last of them tell the sum. Drawing the token from the
logits is not in the programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.frontends.models.gpt_decoding import build_gpt_decoding
from distir.interpreters.simulator import simulate
from distir.passes.distribute import DistributePass
from measured.clusters import GPUS, cluster
from measured.rows import Row

PROFILE = "A100-fastertransformer"


@dataclass(frozen=True)
class Generation:
    """Predicts one row: `outputs` tokens for each of `batch` prompts of `inputs` tokens."""

    layers: int
    d_model: int
    heads: int
    vocab: int
    batch: int
    inputs: int
    outputs: int
    t: int
    p: int
    gpu: str

    def __call__(self) -> float:
        model = (self.layers, self.d_model, self.heads, self.vocab, self.batch)
        prompt = build_gpt(
            *model, self.inputs, "f16", cache=True, fused_attention=False
        )
        seconds = self._seconds(prompt)
        steps = self.outputs - 1
        if steps:
            # FasterTransformer splits the cache by heads.
            heads = ("*.attn.key:1=t", "*.attn.value:1=t") if self.t > 1 else ()
            ends = [
                self._seconds(build_gpt_decoding(*model, cached, "f16"), heads)
                for cached in (self.inputs, self.inputs + steps - 1)
            ]
            seconds += steps * sum(ends) / 2
        return seconds

    def _seconds(self, module: ModuleOp, shard: tuple[str, ...] = ()) -> float:
        on = cluster(self.gpu, self.t * self.p)
        first = module.body.block.first_op
        assert first is not None
        module.body.block.insert_op_before(on, first)
        stages = ("uniform",) if self.p > 1 else ()
        distribute = DistributePass(t=self.t, p=self.p, stages=stages, shard=shard)
        distribute.apply(Context(), module)
        return simulate(module, profiles=(PROFILE,)).step_time_s

    @property
    def ideal(self) -> float:
        """
        Returns the seconds at the devices' peak: of the prompts' operations, and for every
        further token of reading the weights or of the operations, whichever takes longer.
        """
        gpu, weights = GPUS[self.gpu], 12 * self.layers * self.d_model**2
        weights += self.vocab * self.d_model
        operations = 2 * weights * self.batch / gpu.peak
        each = max(operations, 2 * weights / gpu.bandwidth)
        total = self.inputs * operations + (self.outputs - 1) * each
        return total / (self.t * self.p)


def load(data: dict[str, Any]) -> list[Row]:
    """
    Returns the rows of `gpt_inference_*.json` that FasterTransformer ran and that fitted.
    """
    rows: list[Row] = []
    for r in data["records"]:
        latency = r["measured"].get("latency_ms")
        if r["framework"] != "FasterTransformer" or not isinstance(
            latency, int | float
        ):
            continue
        heads = r["head_num"]
        generation = Generation(
            r["num_layers"], heads * r["size_per_head"], heads, r["vocab_size"],
            r["batch"], r["input_len"], r["output_len"], r["tp"], r["pp"],
            data["hardware_ref"],
        )  # fmt: skip
        shown = ("model", "tp", "pp", "batch", "input_len", "output_len")
        name = " ".join(f"{key}={r[key]}" for key in shown)
        rows.append(Row(name, latency / 1e3, generation.ideal, generation))
    return rows
