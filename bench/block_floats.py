"""
Published times with products in blocks (MXFP8 and NVFP4), beside what is predicted:

    python bench/block_floats.py [TEXT]

predicts the steps with TEXT in their name, all by default, and prints the section. The published figures are in
`bench/data/block_floats.json`, with their sources.

The profiles know of the first table only how fast products of blocks are beside those of 8-bit floats with one scale; they know nothing of the second. The steps have the models'
published sizes, an optimizer split over data-parallel devices, sequence parallelism, gradients in 32 bits, and the head in 16 bits. 405B on GB200 ran with eight chunks on a
rank, and is predicted with four, as 126 layers do not fill 128 stages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from experts import cluster_of
from report import cpu_seconds, table

from distir.exports.runs.prediction import Prediction, Predictor
from distir.exports.systems.settings import RunSettings

DATA = json.loads(
    (Path(__file__).parent / "data" / "block_floats.json").read_text("utf-8")
)
_PROFILES = {"dgx-b200": "B200-megatron", "gb200-nvl72": "GB200-megatron"}
_FUSED = "recompute:onnx.Split+onnx.Swish+onnx.Mul"
"""What fused kernels of SwiGLU do not keep for the backward, without recomputation."""


def settings_of(row: dict[str, Any]) -> RunSettings:
    """Returns the settings of a published step."""
    chunks = row.get("chunks", 0)
    own = RunSettings(
        **DATA["models"][row["model"]], seq=8192,
        mlp="swiglu", norm="rms", position="rotary", tied=False, bias=False,
        dtype="bf16", gradients_f32=True, zero=1, checkpoint=_FUSED, overlap="dp,params",
        float8=row["float8"], chunks=chunks, schedule="interleaved-1f1b" if chunks else "",
        sequence_parallel=row.get("t", 1) > 1,
        **{n: row[n] for n in ("devices", "batch", "micro_batch", "t", "p", "c") if n in row},
    )  # fmt: skip
    return own.completed()


def predicted(row: dict[str, Any]) -> Prediction:
    """Returns the prediction of a published step."""
    cluster = cluster_of(row["cluster"], row["devices"])
    settings = settings_of(row)
    return Predictor(cluster, [_PROFILES[row["cluster"]]]).predict(
        settings, settings.vocab
    )


def steps(text: str) -> list[list[str]]:
    """Returns the rows of the table of steps with `text` in their names."""
    rows: list[list[str]] = []
    for row in DATA["steps"]["rows"]:
        name = f"{row['model']} {row['float8']} {row['cluster']}"
        if text not in name:
            continue
        start, s = cpu_seconds(), settings_of(row)
        found = predicted(row)
        seconds = row["batch"] * s.seq / (row["tokens_per_s"] * row["devices"])
        rows.append(
            [
                row["model"],
                row["float8"],
                f"{row['devices']} {_PROFILES[row['cluster']].split('-')[0]}",
                f"{s.d}/{s.t}/{s.p}/{s.c}/{s.k}",
                f"{seconds:.3g} s",
                f"{found.seconds:.3g} s",
                f"{found.seconds / seconds - 1:+.1%}".replace("%", " %"),
                f"{found.peak / 1e9:.3g} of {found.memory / 1e9:.3g} GB",
            ]
        )
        print(rows[-1], f"{cpu_seconds() - start:.0f} CPU s", flush=True)
    return rows


if __name__ == "__main__":
    print(
        table(
            [
                "model",
                "format",
                "devices",
                "D/T/P/C/K",
                "published",
                "predicted",
                "error",
                "memory",
            ],
            steps(*sys.argv[1:] or [""]),
        )
    )
