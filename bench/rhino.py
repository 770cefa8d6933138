"""
Rhino's evaluation (Zhang et al. 2023, section 7) on the simulator:

    python bench/rhino.py FOLDER [EXPERIMENT ...]

computes what FOLDER has no results of and prints the section; the experiments are `full`,
`spmd`, `pipeline`, `strong`, `others`, `wide` and `levels`.

The paper shows its results as curves, and gives few numbers in the text: with full
parallelism GPTs reach 54.0 to 75.9 % of the peak of 15.6 TFLOP/s and MoE models up to 55.1 %,
with SPMD alone GPTs up to 68.1 % and MoE models up to 62.0 %. Here are its configurations
(Tables 1 to 4), in f32 with AdamW, with the profiles V100 and V100S, on its platforms M8
(`v100-roce`: 8 V100 a node with NVLink, 100 Gb/s between nodes) and S1 (`v100-pcie-roce`: one V100S
a node). It names neither sequences, here 1,024 tokens, nor vocabularies, here 51,200, nor the size
of pictures, here 224 (UNet: 32). `share` are the operations of the sequential program at the peak of all
devices, over the step. Full parallelism is the best plan by hand (`bench/hand_plans.py`: degrees, numbers
of micro-batches, ZeRO, checkpoints, splits of experts), SPMD what `search-sharding` finds on one axis of
all devices, pipelines have a rank a device and as many micro-batches as samples.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from auto import RHINO, RhinoModel
from hand_plans import HandPlans
from report import DOCUMENT, table
from rhino_curves import draw
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

import distir
from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.distribute import DistributePass
from distir.passes.search_sharding import SearchShardingPass
from distir.planning.grid.bounds import Bounds
from distir.planning.plans.programs import replace_cluster

M8, S1 = "v100-roce", "v100-pcie-roce"
PROFILE = ("auto",)
TIME_LIMIT = 120.0
"""Seconds for one search of layouts."""

MODELS = (
    RhinoModel("GPT-Medium", 24, 1024, 16, 1, 4096),
    RhinoModel("MoE-8E-380M", 8, 768, 16, 1, 6144, 8),
    RhinoModel("GPT-Large", 24, 1536, 16, 2, 6144),
    RhinoModel("MoE-8E-760M", 16, 768, 16, 2, 6144, 8),
    RhinoModel("GPT-XL", 24, 2048, 32, 4, 8192),
    RhinoModel("MoE-16E-1.3B", 16, 768, 16, 4, 6144, 16),
    *RHINO,
)
OTHERS: dict[str, tuple[dict[str, Any], int]] = {
    "vgg": ({"size": "19-million"}, 128),
    "bert": ({"size": "DNABERT"}, 32),
    "unet": ({}, 16),
}
"""Options of `distir build`, and the batch of each device (Table 3)."""

WIDE = {"1.3B": 1, "2.6B": 2, "6B": 4, "12B": 8}
"""Wide-ResNets with their numbers of devices (Table 4)."""

LAYERS = (12, 36, 72)
"""Layers of the GPTs of width 512 whose layouts are searched at both levels (Figure 10)."""


@dataclass(frozen=True)
class Found:
    """A simulated step; 0 s if the program does not fit (`why`)."""

    what: str
    devices: int
    batch: int
    plan: str = ""
    seconds: float = 0.0
    share: float = 0.0
    peak_gb: float = 0.0
    search_s: float = 0.0
    why: str = ""


Rows = Sequence[tuple[str, Callable[[], Found]]]


def judged(
    what: str, batch: int, source: ModuleOp, devices: int, plan: str, *passes: Any
) -> Found:
    """Returns the simulation of a program after passes that distribute it."""
    (cluster,) = (o for o in source.body.block.ops if o.name == "device.cluster")
    bounds = Bounds.of(source, cluster, devices)  # pyright: ignore[reportArgumentType]
    found = Found(what, devices, batch, plan)
    start = time.process_time()
    module = source.clone()
    try:
        for each in passes:
            each.apply(Context(), module)
        searched = time.process_time() - start
        result = simulate(module, profiles=PROFILE)
    except (DistIRError, VerifyException) as error:
        return replace(found, why=" ".join(str(error).split())[:200])
    peak = max(result.reserved_memory_bytes) / 1e9
    found = replace(found, peak_gb=peak, search_s=searched)
    if not result.fits:
        return replace(found, why="does not fit")
    seconds = result.step_time_s
    return replace(found, seconds=seconds, share=bounds.seconds / seconds)


def searched(
    what: str, batch: int, source: ModuleOp, devices: int, level: str = "O3"
) -> Found:
    """Returns the step with the layouts that are found on one axis of all devices."""
    if devices == 1:
        return judged(what, batch, source, 1, "one device")
    search = SearchShardingPass(
        axes=(f"d={devices}",), profile=PROFILE, time_limit=TIME_LIMIT, level=level
    )
    return judged(what, batch, source, devices, f"searched, {level}", search)


def spmd_batch(model: RhinoModel) -> int:
    """Returns the global batch of the tests with SPMD or pipelines alone."""
    return 8 if model.experts else 4


def full(folder: Path) -> Rows:
    """Tables 1 and 2 with full parallelism (Figure 7)."""

    def row(model: RhinoModel) -> Found:
        module = model.program()
        file = folder / f"hand-{model.file_name}.jsonl"
        climbs, n = model.devices < 8, model.devices
        plans = HandPlans(module, model.batch, model.experts, file, PROFILE, climbs, n)
        best = plans.best()
        share = plans.bounds.seconds / best.seconds
        return Found(
            *(model.name, model.devices, model.batch, str(best.plan)),
            *(best.seconds, share, best.peak_gb),
        )

    return [(m.name, lambda m=m: row(m)) for m in MODELS]


def spmd(folder: Path) -> Rows:
    """SPMD alone, weak scaling (Figure 8)."""

    def row(model: RhinoModel, on: str) -> Found:
        batch = spmd_batch(model)
        module = model.program(batch, on)
        return searched(f"{model.name} {on}", batch, module, model.devices)

    return [
        (f"{m.name} {on}", lambda m=m, on=on: row(m, on))
        for on in (M8, S1)
        for m in MODELS
    ]


def pipeline(folder: Path) -> Rows:
    """Pipelines alone, GPTs (Figure 8)."""

    def row(model: RhinoModel, on: str) -> Found:
        p, batch = model.devices, spmd_batch(model)
        module = model.program(batch, on)
        distribute = DistributePass(p=p, k=batch if p > 1 else 1)
        name = f"{model.name} {on}"
        return judged(name, batch, module, p, f"p={p} k={batch}", distribute)

    return [
        (f"{m.name} {on}", lambda m=m, on=on: row(m, on))
        for on in (M8, S1)
        for m in MODELS
        if not m.experts
    ]


def strong(folder: Path) -> Rows:
    """GPT-Medium with a batch of 4 on 1 to 8 devices (Figure 8e)."""

    def row(devices: int, on: str) -> Found:
        model = replace(MODELS[0], devices=devices)
        return searched(f"{model.name} {on}", 4, model.program(4, on), devices)

    return [
        (f"{n} on {on}", lambda n=n, on=on: row(n, on))
        for on in (M8, S1)
        for n in (1, 2, 4, 8)
    ]


def built(name: str, devices: int, batch: int, **options: Any) -> ModuleOp:
    """Returns the training step of a model of `distir build` on platform M8."""
    module = distir.build(name, batch=batch, training=True, **options).module
    replace_cluster(module, load_cluster(M8, devices))
    return module


def others(folder: Path) -> Rows:
    """VGG19 with a million classes, DNABERT and UNet (Figure 9, Table 3)."""

    def row(name: str, devices: int) -> Found:
        options, each = OTHERS[name]
        batch = each * devices
        module = built(name, devices, batch, **options)
        return searched(name, batch, module, devices)

    return [
        (f"{name} {n}", lambda name=name, n=n: row(name, n))
        for name in OTHERS
        for n in (1, 2, 4, 8)
    ]


def wide(folder: Path) -> Rows:
    """Wide-ResNets with a batch of 4 (Figure 9, Table 4)."""

    def row(size: str, devices: int) -> Found:
        module = built("wide-resnet", devices, 4, size=size)
        return searched(f"Wide-ResNet {size}", 4, module, devices)

    return [(size, lambda s=size, n=n: row(s, n)) for size, n in WIDE.items()]


def levels(folder: Path) -> Rows:
    """Layouts of GPTs of width 512, searched at levels O2 and O3 (Figure 10)."""

    def row(layers: int, devices: int, level: str) -> Found:
        model = RhinoModel(f"GPT, {layers} layers", layers, 512, 8, devices, 2048)
        batch = 4 * devices
        return searched(model.name, batch, model.program(batch), devices, level)

    return [
        (f"{count} {n} {level}", lambda c=count, n=n, v=level: row(c, n, v))
        for count in LAYERS
        for n in (2, 8)
        for level in ("O2", "O3")
    ]


EXPERIMENTS: dict[str, Callable[[Path], Rows]] = {
    each.__name__: each for each in (full, spmd, pipeline, strong, others, wide, levels)
}


def results(folder: Path, name: str, compute: bool = True) -> list[Found]:
    """Returns the rows of an experiment; those that the folder lacks are computed."""
    path = folder / f"{name}.jsonl"
    known: dict[str, Found] = {}
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            key, data = json.loads(line)
            known[key] = Found(**data)
    for key, row in EXPERIMENTS[name](folder):
        if key not in known and compute:
            known[key] = row()
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, vars(known[key])]) + "\n")
            print(f"{name} {key}: {known[key]}", flush=True)
    return [known[key] for key, _ in EXPERIMENTS[name](folder) if key in known]


def shown(name: str, rows: Sequence[Found]) -> str:
    """Returns an experiment as Markdown."""
    title = (EXPERIMENTS[name].__doc__ or "").strip().rstrip(".")
    head = [
        "what",
        "devices",
        "batch",
        "plan",
        "step",
        "samples/s",
        "share",
        "reserved",
    ]
    head += ["search, CPU s"]
    lines: list[list[str]] = []
    for row in rows:
        given = [row.what, str(row.devices), str(row.batch), row.plan]
        if not row.seconds:
            gb = f"{row.peak_gb:.3g} GB" if row.peak_gb else ""
            lines.append([*given, row.why, "", "", gb, f"{row.search_s:.0f}"])
            continue
        lines.append(
            [
                *given,
                f"{row.seconds:.4g} s",
                f"{row.batch / row.seconds:.4g}",
                f"{row.share:.1%}",
                f"{row.peak_gb:.3g} GB",
                f"{row.search_s:.0f}" if row.search_s else "",
            ]
        )
    return f"**{title}**\n\n{table(head, lines)}"


def report(folder: Path, compute: bool = True) -> str:
    """Returns the section, from the results in a folder."""
    doc = (__doc__ or "").split("\n\n")[-1]
    parts = ["## Rhino's evaluation", doc.strip()]
    found = {name: results(folder, name, compute) for name in EXPERIMENTS}
    if all(found.values()):
        (DOCUMENT.parent / "figures" / "rhino.svg").write_text(draw(found), "utf-8")
        parts.append("All of it as curves: [the figure](figures/rhino.svg).")
    parts += [shown(name, rows) for name, rows in found.items() if rows]
    return "\n\n".join(parts)


def section() -> str:
    """Returns the section of `docs/benchmarks.md`."""
    with tempfile.TemporaryDirectory() as name:
        return report(Path(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.experiments:
        if name not in EXPERIMENTS:
            parser.error(
                f"there is no experiment {name}; choose from {', '.join(EXPERIMENTS)}"
            )
        results(folder, name)
    print(report(folder, compute=not arguments.experiments))


if __name__ == "__main__":
    main()
