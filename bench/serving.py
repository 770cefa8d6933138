"""
How well simulated services predict published ones:

    python bench/serving.py [--only TEXT]

The published runs, with their sources, are in `bench/data/trtllm_serving.json`; the memory
for caches, the most sequences (2048) and the tokens of a step (8192) are the engine's defaults.
`make bench` writes the section.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

from report import table

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

FITTED = ("LLaMA v3.1 8B", "LLaMA v3.1 70B")
"""The models whose rows were in view when figures of the profiles were chosen."""

CLUSTERS = {"H100": "dgx-h100", "A100": "dgx-a100"}

MEMORY_SHARE = 0.95
"""The share of free memory for caches that the published runs often set."""

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
def simulator(model: str, gpu: str, tp: int) -> StepSimulator:
    """Returns the simulator of a model's steps on `tp` devices."""
    return StepSimulator(
        BuiltSteps(MODELS[model]),
        load_cluster(CLUSTERS[gpu], 8),
        (f"{gpu}-serving",),
        tp,
        1,
        8192,
        MAX_SEQUENCES,
        BATCHED_TOKENS,
    )


def predict(row: Row) -> float:
    """Returns the predicted tokens/s of a row."""
    steps = simulator(row.model, row.gpu, row.tp)
    tokens = steps.memory(1).cache_tokens(MEMORY_SHARE)
    limits = ReplicaLimits(tokens, row.batch, BATCHED_TOKENS, admission="reserve")
    if row.kind == "static":
        # One batch that ran: all of it is read first, however much memory it takes.
        size = row.batch * (row.input + row.output)
        limits = ReplicaLimits(max(tokens, size), row.batch, BATCHED_TOKENS)
    work = poisson_workload(row.requests, row.input, row.output)
    return serve(work.at_rate(inf), Pool(steps.table(1), limits)).tokens_per_s


@dataclass(frozen=True)
class Predicted:
    """A row with the tokens/s that were predicted."""

    row: Row
    tokens_per_s: float

    @property
    def error(self) -> float:
        """The relative error."""
        return self.tokens_per_s / self.row.tokens_per_s - 1

    @property
    def per_device(self) -> tuple[float, float]:
        """Measured and predicted tokens/s and device."""
        return self.row.tokens_per_s / self.row.tp, self.tokens_per_s / self.row.tp


def predictions(only: str = "") -> list[Predicted]:
    """Returns the predictions of the rows whose name holds `only`."""
    found: list[Predicted] = []
    for row in rows():
        if only in str(row):
            found.append(Predicted(row, predict(row)))
            print(f"{found[-1].error:+7.1%} {row}", flush=True)
    return found


def right_pairs(found: Sequence[Predicted]) -> tuple[int, int, int]:
    """
    Returns in how many pairs of degrees, of one model with the same requests, the order
    of tokens/s is right, in how many that of tokens/s and device, and of how many pairs.
    """
    total = each = count = 0
    for a, b in combinations(found, 2):
        r, q = a.row, b.row
        same = (r.model, r.gpu, r.input, r.output) == (
            q.model,
            q.gpu,
            q.input,
            q.output,
        )
        if not same or r.tp == q.tp or "static" in (r.kind, q.kind):
            continue
        count += 1
        measured = r.tokens_per_s > q.tokens_per_s
        total += measured == (a.tokens_per_s > b.tokens_per_s)
        own, other = a.per_device, b.per_device
        each += (own[0] > other[0]) == (own[1] > other[1])
    return total, each, count


def _mean(found: Sequence[Predicted]) -> str:
    return f"{statistics.fmean(abs(p.error) for p in found):.1%}"


def _summary(found: Sequence[Predicted]) -> str:
    groups: dict[tuple[str, str], list[Predicted]] = {}
    for p in found:
        groups.setdefault((p.row.kind, p.row.model), []).append(p)
    lines = [
        [
            kind,
            model,
            *(
                _mean(own) if (own := [p for p in some if p.row.gpu == gpu]) else "-"
                for gpu in CLUSTERS
            ),
            str(len(some)),
            f"{max((p.error for p in some), key=abs):+.0%}",
            "yes" if model in FITTED else "no",
        ]
        for (kind, model), some in sorted(groups.items())
    ]
    head = ["batching", "model", *CLUSTERS, "rows", "worst", "in view"]
    return table(head, lines)


def _all_rows(found: Sequence[Predicted]) -> str:
    lengths = list(
        dict.fromkeys(
            (p.row.input, p.row.output) for p in found if p.row.kind == "in-flight"
        )
    )
    groups: dict[tuple[str, str, int], dict[tuple[int, int], Predicted]] = {}
    for p in found:
        if p.row.kind == "in-flight":
            key = (p.row.gpu, p.row.model, p.row.tp)
            groups.setdefault(key, {})[p.row.input, p.row.output] = p
    lines = [
        [
            gpu,
            model,
            str(tp),
            *(
                f"{own[at].row.tokens_per_s:.0f} ({own[at].error:+.0%})"
                if at in own
                else ""
                for at in lengths
            ),
        ]
        for (gpu, model, tp), own in groups.items()
    ]
    return table(["GPU", "model", "t", *(f"{a}/{b}" for a, b in lengths)], lines)


def _static_rows(found: Sequence[Predicted]) -> str:
    lines = [
        [
            p.row.model,
            str(p.row.tp),
            str(p.row.batch),
            f"{p.row.input}/{p.row.output}",
            f"{p.row.tokens_per_s:.0f}",
            f"{p.error:+.0%}",
        ]
        for p in found
        if p.row.kind == "static"
    ]
    return table(["model", "t", "batch", "lengths", "tokens/s", "error"], lines)


def section() -> str:
    """Returns the section of `docs/benchmarks.md`."""
    return report(predictions())


def report(found: Sequence[Predicted]) -> str:
    """Returns the section, from the predictions of all rows."""
    flight = [p for p in found if p.row.kind == "in-flight"]
    total, each, count = right_pairs(found)
    held = [p for p in flight if p.row.model not in FITTED]
    return "\n\n".join(
        [
            "## Serving",
            "`python bench/serving.py`: tokens/s that engines generate with all requests queued "
            "at once, from the steps of [serve-plan](serving.md), simulated and interpolated, "
            "and its simulation of continuous batching, with the profiles `H100-serving` and "
            "`A100-serving`. Published: TensorRT-LLM 0.15 on H100 80GB and A100-SXM4-80GB in 16 "
            "bits, in-flight batching, requests of equal lengths; and TensorRT-LLM 0.9 on A100, "
            "one batch from its first token to its last.",
            f"- **Mean absolute error of the {len(flight)} runs with in-flight batching: "
            f"{_mean(flight)}** (target 15 %); of the {len(held)} of models that "
            f"nothing was fitted to: {_mean(held)}; of all {len(found)} rows: {_mean(found)};",
            f"- **degrees of tensor parallelism on one model, same requests: {total} of {count} "
            f"pairs in the right order by tokens/s** (target 9 of 10), {each} of {count} by "
            f"tokens/s and device, where they differ by little.",
            _summary(found),
            "All rows with in-flight batching, by lengths of prompt and output: tokens/s "
            "measured, and the error of the prediction.",
            _all_rows(found),
            "All rows of single batches (A100):",
            _static_rows(found),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--json", type=Path, help="write all predictions to a file")
    parser.add_argument("--print", action="store_true", help="print the section")
    arguments = parser.parse_args()
    found = predictions(arguments.only)
    if arguments.json is not None:
        data = [asdict(p) for p in found]
        arguments.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    print(report(found) if arguments.print else _summary(found))


if __name__ == "__main__":
    main()
