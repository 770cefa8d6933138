"""
How well `serve-plan`'s parts predict published serving runs:

    python bench/serving.py [--only TEXT] [--profile-suffix serving] [--rows]

The published runs, with their sources, are in `bench/data/trtllm_serving.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from distir.errors import DistIRError
from distir.frontends.models.serving_step import DecoderSizes
from distir.hardware import load_cluster
from distir.planning.serving.step_simulator import BuiltSteps, StepSimulator
from distir.serving.replica import ReplicaLimits
from distir.serving.requests import poisson_workload
from distir.serving.service import Pool, serve

DATA = Path(__file__).parent / "data" / "trtllm_serving.json"

MODELS = {
    "LLaMA v3.1 8B": DecoderSizes(32, 4096, 32, 8, 128, 14336, 128256, "bf16"),
    "LLaMA v3.1 70B": DecoderSizes(80, 8192, 64, 8, 128, 28672, 128256, "bf16"),
    "LLaMA 7B": DecoderSizes(32, 4096, 32, 32, 128, 11008, 32000, "bf16"),
    "LLaMA 70B": DecoderSizes(80, 8192, 64, 8, 128, 28672, 32000, "bf16"),
    "Mistral 7B": DecoderSizes(32, 4096, 32, 8, 128, 14336, 32000, "bf16"),
    "Mixtral 8x7B": DecoderSizes(
        *(32, 4096, 32, 8, 128, 14336, 32000, "bf16"),
        expert_layers=32,
        experts=8,
        choices=2,
        expert_ffn=14336,
    ),
    "GPT-J 6B": DecoderSizes(28, 4096, 16, 16, 256, 16384, 50400, "f16", gated=False),
    "Falcon 180B": DecoderSizes(
        80, 14848, 232, 8, 64, 59392, 65024, "bf16", gated=False, tied=True
    ),
}
"""The sizes of the models, from their published configurations."""

CLUSTERS = {"H100": "dgx-h100", "A100": "dgx-a100"}

MEMORY_SHARE = 0.95
MAX_SEQUENCES, BATCHED_TOKENS = 2048, 8192
"""The defaults of TensorRT-LLM's engines."""


@dataclass(frozen=True)
class Row:
    """A published run: `requests` of the same lengths, all at once."""

    model: str
    gpu: str
    tp: int
    input: int
    output: int
    tokens_per_s: float
    requests: int
    batch: int = MAX_SEQUENCES
    kind: str = "in-flight"

    @property
    def is_held_out(self) -> bool:
        """Whether no figure of a profile was fitted to it."""
        return (self.input, self.output) in ((500, 2000), (2048, 2048), (128, 128))

    def __str__(self) -> str:
        batch = f" batch={self.batch}" if self.kind == "static" else ""
        return f"{self.gpu} {self.model} t={self.tp} {self.input}/{self.output}{batch}"


def rows() -> list[Row]:
    """Returns the published runs of the file."""
    data: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    counts = data["requests"]
    found = [
        Row(**r, requests=counts[f"{r['input']},{r['output']}"]) for r in data["rows"]
    ]
    static = data["static"]["rows"]
    return found + [Row(**r, requests=r["batch"], kind="static") for r in static]


@cache
def simulator(
    model: str, gpu: str, tp: int, sequences: int, profile: str
) -> StepSimulator:
    """Returns the simulator of a model's steps on `tp` devices."""
    return StepSimulator(
        BuiltSteps(MODELS[model]),
        load_cluster(CLUSTERS[gpu], 8),
        (profile,),
        tp,
        1,
        8192,
        sequences,
        BATCHED_TOKENS,
    )


def predict(row: Row, suffix: str) -> float:
    """Returns the predicted tokens/s of a row."""
    steps = simulator(row.model, row.gpu, row.tp, MAX_SEQUENCES, f"{row.gpu}{suffix}")
    tokens = steps.memory(1).cache_tokens(MEMORY_SHARE)
    limits = ReplicaLimits(tokens, row.batch, BATCHED_TOKENS, admission="reserve")
    if row.kind == "static":
        # One batch that ran: all of it is read first, however much memory it takes.
        size = row.batch * (row.input + row.output)
        limits = ReplicaLimits(max(tokens, size), row.batch, BATCHED_TOKENS)
    work = poisson_workload(row.requests, row.input, row.output)
    return serve(work.at_rate(inf), Pool(steps.table(1), limits)).tokens_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--suffix", default="-serving")
    parser.add_argument("--rows", action="store_true")
    arguments = parser.parse_args()
    errors: dict[str, list[float]] = {}
    for row in rows():
        if arguments.only not in str(row):
            continue
        try:
            predicted = predict(row, arguments.suffix)
        except DistIRError as error:
            print(f"{row}: {error}")
            continue
        error = predicted / row.tokens_per_s - 1
        errors.setdefault(f"{row.gpu} {row.kind}", []).append(abs(error))
        print(
            f"{error:+7.1%} {predicted:9.1f} {row.tokens_per_s:9.1f} {row}", flush=True
        )
    for name, some in errors.items():
        print(name, len(some), f"{statistics.fmean(some):.1%}")


if __name__ == "__main__":
    main()
