"""
Published steps of mixtures of experts and of Llama 3 405B, beside what is predicted:

    python bench/experts.py [TEXT]

predicts the rows with TEXT in their name, all by default, and prints the section. The published figures are in
`bench/data/experts.json`, with their sources and with the rows that are left out.

Nothing is fitted to these runs. gpt-oss and Qwen3 are built as Mixtrals of their sizes: without the sinks and the sliding windows of gpt-oss,
without biases, and without the norms of queries and keys of Qwen3. DeepSeek-V3 has its latent attention, its shared expert and its three layers
without experts (671.0B parameters), but no rotation of positions, a choice among all experts by softmax, and no layer that predicts a second token. Its tokens are sent once to each
of at most four nodes, as its router and its software have it. No token is
dropped, and the load of experts is even, as the runs forced it. Fused SwiGLU kernels keep their input alone. In each rack of 72 devices, runs use 64. MFU counts the operations of the whole attention.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepseek import deepseek_v3
from report import cpu_seconds, table
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.exports.runs.model import trained
from distir.exports.runs.prediction import Prediction, Predictor
from distir.exports.systems.settings import RunSettings
from distir.hardware import grow, load_cluster
from distir.planning.plans.programs import cluster_of_text
from distir.transforms.expert_shards import assume_imbalance

DATA = json.loads((Path(__file__).parent / "data" / "experts.json").read_text("utf-8"))
_PROFILES = {"dgx-h100": "H100-megatron", "gb200-nvl72": "GB200", "h800": "H800"}
_EVEN = 1.0
_FUSED = "recompute:onnx.Split+onnx.Swish+onnx.Mul+onnx.Cast"
"""What fused kernels of SwiGLU do not keep for the backward, without recomputation."""
_FUSED_DENSE = _FUSED.removesuffix("+onnx.Cast")
"""The same for a model without experts, whose functions have no casts."""


@dataclass(frozen=True)
class Run:
    """A published step: its seconds, and how it is predicted."""

    name: str
    cluster: str
    settings: RunSettings
    seconds: float

    def predict(self) -> Prediction:
        """Returns the prediction of the step."""
        cluster = cluster_of(self.cluster, self.settings.devices)
        kind = _DeepSeek if self.name.startswith("DeepSeek") else Predictor
        predictor = kind(cluster, [_PROFILES[self.cluster]], _EVEN)
        return predictor.predict(self.settings, self.settings.vocab)


class _DeepSeek(Predictor):
    """Predicts runs of DeepSeek-V3, which the settings of runs cannot describe."""

    def program(self, settings: RunSettings, vocab: int, batch: int) -> ModuleOp:
        module = deepseek_v3(settings.layers, batch, settings.seq)
        assume_imbalance(module, self.expert_imbalance)
        return trained(module, settings)


def cluster_of(name: str, devices: int) -> ClusterOp:
    """
    Returns the built-in cluster `name` with `devices` devices. Of several racks of 72
    devices, runs use 64 each, so that no group of devices lies in two racks.
    """
    cluster = load_cluster(name, None)
    if cluster.size == 72 and devices > 72:
        text = str(cluster).replace("0 to 72", "0 to 64")
        cluster = cluster_of_text(text.replace("spans 72", "spans 64"))
    if devices <= cluster.size:
        return cluster
    return grow(cluster, -(-devices // cluster.size) * cluster.size)


def _settings(model: str, **plan: Any) -> RunSettings:
    """Returns the settings of a run in bf16 with optimizer states in 32 bits."""
    size = {"expert_ffn": 0, **DATA["models"][model]}
    if size.get("experts"):
        size["expert_ffn"] = size["ffn"]
    own = RunSettings(
        **size, mlp="swiglu", norm="rms", position="rotary", tied=False, bias=False,
        dtype="bf16", gradients_f32=True, zero=1, **plan,
    )  # fmt: skip
    return own.completed()


def experts() -> Iterator[Run]:
    """Megatron Bridge, in bf16"""
    for row in DATA["megatron_bridge"]["rows"]:
        chunks = row.get("chunks", 0)
        settings = _settings(
            row["model"],
            **{n: row[n] for n in ("devices", "batch", "micro_batch", "seq", "p", "e")},
            chunks=chunks,
            schedule="interleaved-1f1b" if chunks else "",
            checkpoint=row.get("checkpoint", _FUSED),
        )
        rate = row["tokens_per_s"] * row["devices"]
        seconds = row["batch"] * row["seq"] / rate
        yield Run(row["name"], row["cluster"], settings, seconds)


def llama3() -> Iterator[Run]:
    """Llama 3 405B, in bf16"""
    for row in DATA["llama3"]["rows"]:
        settings = _settings(
            "llama-3-405b",
            **{n: row[n] for n in ("devices", "batch", "seq", "t", "p")},
            sequence_parallel=True,
            checkpoint=_FUSED_DENSE,
            overlap="dp,params",
            chunks=4,
            schedule="interleaved-1f1b",
        )
        tokens, s = row["batch"] * row["seq"], settings
        kv = s.d_model * s.kv_heads // s.heads
        layer = 2 * s.d_model * (s.d_model + kv) + 3 * s.d_model * s.ffn
        numbers = s.layers * layer + s.vocab * s.d_model
        flops = tokens * (6 * numbers + 6 * s.layers * s.d_model * s.seq)
        yield Run(
            "Llama 3 405B", "dgx-h100", replace(settings),
            flops / (row["tflops"] * 1e12 * row["devices"]),
        )  # fmt: skip


def deepseek() -> Iterator[Run]:
    """DeepSeek-V3, predicted in bf16"""
    for row in DATA["deepseek_v3"]["rows"]:
        settings = _settings(
            "deepseek-v3",
            **{n: row[n] for n in ("devices", "batch", "seq", "p", "e", "chunks")},
            schedule=row["schedule"],
            checkpoint=_FUSED,
        )
        tokens = row["batch"] * row["seq"]
        hours = row.get("gpu_hours_per_trillion_tokens", 0.0)
        rate = 1e12 / (hours * 3600) if hours else row["tokens_per_s"]
        seconds = tokens / (rate * row["devices"])
        yield Run(row["name"], row["cluster"], settings, seconds)


GROUPS = (experts, llama3, deepseek)


def section(text: str = "") -> str:
    """Returns the section of `docs/benchmarks.md`, of the runs with `text` in their names."""
    doc = (__doc__ or "").split("\n\n")[-1].strip()
    parts = ["## Mixtures of experts, and 16,384 devices", doc]
    for group in GROUPS:
        rows: list[list[str]] = []
        for run in group():
            if text not in f"{run.name} {run.settings.devices} {run.cluster}":
                continue
            start, s = cpu_seconds(), run.settings
            found = run.predict()
            rows.append(
                [
                    run.name,
                    f"{s.devices} {_PROFILES[run.cluster].split('-')[0]}",
                    f"{s.d}/{s.t}/{s.p}/{s.e}/{s.k}",
                    f"{run.seconds:.3g} s",
                    f"{found.seconds:.3g} s",
                    f"{found.seconds / run.seconds - 1:+.1%}".replace("%", " %"),
                    f"{100 * found.mfu:.3g} %",
                    f"{found.peak / 1e9:.3g} of {found.memory / 1e9:.3g} GB",
                ]
            )
            print(rows[-1], f"{cpu_seconds() - start:.0f} CPU s", flush=True)
        head = [
            "run",
            "devices",
            "D/T/P/E/K",
            "published",
            "predicted",
            "error",
            "MFU",
            "memory",
        ]
        if rows:
            parts += [f"**{group.__doc__}**", table(head, rows)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(section(*sys.argv[1:]))
