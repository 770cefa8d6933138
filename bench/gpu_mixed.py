"""
Programs in bf16, predicted with the profile of the card that DistIR brings and measured: the
section `mixed` of `make gpu`. Nothing of what is measured here is in the profile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cpu_programs import Model, replace_cluster
from report import table
from xdsl.context import Context

from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.launch.timing import (
    TimedPackage,
    TimingSettings,
    time_packages,
    timing_spawner,
    typical,
)
from distir.lowering.torch_package import write_package
from distir.passes.autocast import AutocastPass
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.inline_calls import InlineCallsPass
from distir.passes.outline_repeats import OutlineRepeatsPass

CLUSTERS = {"H100": "dgx-h100", "H200": "dgx-h200", "A100": "dgx-a100", "V100": "dgx2"}
"""The cluster that has a card, by a part of the card's name."""


@dataclass(frozen=True)
class Way:
    """A name for the table, the options of `distribute`, and whether kernels are compiled."""

    name: str
    distribute: DistributePass
    compiled: bool = False


WAYS = (
    Way("eager", DistributePass(buckets=False)),
    Way("eager, checkpoint", DistributePass(checkpoint="full", buckets=False)),
    Way("compiled", DistributePass(buckets=False), True),
)
SMALL = Model(2, 64, 4, heads=4, vocab=256, seq=16)
MODELS = (
    Model(12, 768, 8, heads=12, vocab=50304, seq=512),
    Model(8, 2048, 4, heads=16, vocab=32768, seq=1024),
    Model(2, 4096, 4, heads=32, vocab=32768, seq=1024),
    Model(2, 4096, 8, heads=32, vocab=32768, seq=2048),
)


def rows_of(
    model: Model, cluster: str, backend: str, log: Callable[[str], None]
) -> list[list[str]]:
    """Predicts and runs a model in all ways. Raises DistIRError."""
    log(f"mixed, {model.name}")
    step = build_gpt(
        model.layers, model.width, model.heads, model.vocab, model.batch, model.seq
    )
    for change in (
        InlineCallsPass(),
        AutocastPass(dtype="bf16"),
        OutlineRepeatsPass(),
        DifferentiatePass(loss="cross_entropy", optimizer="adamw"),
    ):
        change.apply(Context(), step)
    replace_cluster(step, load_cluster(cluster, 1))
    predicted: list[tuple[float, int]] = []
    packages: list[TimedPackage] = []
    with tempfile.TemporaryDirectory(prefix="distir-") as name, timing_spawner() as own:
        for way in WAYS:
            module = step.clone()
            way.distribute.apply(Context(), module)
            found = simulate(module, profiles=["auto"])
            predicted.append((found.step_time_s, max(found.peak_memory_bytes)))
            folder = Path(name) / str(len(packages))
            write_package(module, folder, compiled=way.compiled)
            packages.append(TimedPackage(folder, below=model.vocab))
        timed = time_packages(
            packages,
            1,
            TimingSettings(rounds=1, warm_up=2, samples=5),
            spawner=own,
            backend=backend,
            progress=log,
        )
    return [
        [
            model.name,
            way.name,
            f"{seconds * 1e3:.1f}",
            f"{typical(times) * 1e3:.1f}",
            f"{seconds / typical(times):.2f}",
            f"{memory / 1e6:.0f}",
            f"{peak / 1e6:.0f}",
            f"{memory / peak:.2f}" if peak else "-",
        ]
        for way, (seconds, memory), times, peak in zip(
            WAYS, predicted, timed.times, timed.peaks, strict=True
        )
    ]


def as_text(card: str, dry: bool, log: Callable[[str], None]) -> str:
    """Returns the section for a card of that name; `dry`, a small model on the CPU."""
    known = [cluster for part, cluster in CLUSTERS.items() if part in card]
    if not known and not dry:
        return f"Not measured: there is no profile of a {card}."
    cluster, backend = ("dgx-h100", "gloo") if dry else (known[0], "nccl")
    head = ["model", "way", "predicted ms", "measured ms", "ratio"]
    head += ["predicted MB", "measured MB", "ratio"]
    models = (SMALL,) if dry else MODELS
    rows = [row for m in models for row in rows_of(m, cluster, backend, log)]
    return (
        f"GPT with AdamW under `autocast` of bf16 on one device, predicted with the profile "
        f"of `{cluster}`, which knows nothing of these runs.\n\n{table(head, rows)}"
    )
