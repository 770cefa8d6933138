"""
Slapo's figures (Chen et al., ASPLOS 2024) on the simulator:

    python bench/slapo.py [--only figure8 figure9 figure10] [--write]

Figure 10: OPT-350M on 8 V100, 13 sizes of the batch and 7 ratios of layers that are computed
again; all 91 points are simulated, and the published measurements are replayed as if
they were runs of `distir schedule --tune measure`. Figure 8: GPT-10B on 16, 32 and 64 V100 as
Megatron-LM, DeepSpeed and Slapo run it. Figure 9: BERT, optimised step by step. `--write` puts what comes out into
docs/benchmarks.md. The published numbers are in data/slapo.json, which names their source.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.simulator.profiles.files import load_profiles
from distir.interpreters.simulator.profiles.profile import Profile
from distir.passes.differentiate import DifferentiatePass
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.rank_correlation import rank_correlation
from distir.planning.plans.result import Simulated
from distir.scheduling import Schedule
from distir.scheduling.tuning.corrections import Corrections
from distir.scheduling.tuning.programs import TunedPrograms
from distir.scheduling.tuning.space import Point, TuningSpace
from distir.scheduling.tuning.tuner import Tuner, candidate

HERE = Path(__file__).resolve().parent
DATA = json.loads((HERE / "data" / "slapo.json").read_text("utf-8"))
DOCS = HERE.parent / "docs" / "benchmarks.md"
HEADING = "## Slapo's figures"
CLUSTER = "v100-roce"
"""8 V100 of 32 GB behind NVLink a node, and 100 Gb/s between nodes, as the paper's p3dn."""


def train(module: ModuleOp) -> None:
    """Makes a training step with AdamW."""
    DifferentiatePass(loss="cross_entropy", optimizer="adamw").apply(Context(), module)


def recomputing(ratios: list[float], policy: Literal["full", "whole"]) -> Schedule:
    """Computes that part of the layers again by a policy of `activation-checkpoint`."""
    s = Schedule()
    s["transformer.h.*"].first(s.knob("ratio", ratios)).recompute(policy)
    return s


@dataclass(frozen=True)
class Replay:
    """What a replay of published measurements came to."""

    runs: int
    out_of_memory: int
    until_best: int | None


def figure10() -> Iterator[str]:
    """Tunes OPT-350M; gives the lines of the report."""
    published = DATA["figure10"]
    batches, ratios = published["batches"], published["ratios"]
    measured: dict[tuple[int, float], float | None] = {
        (batch, ratio): published["throughput"][i][j]
        for i, batch in enumerate(batches)
        for j, ratio in enumerate(ratios)
    }
    before = time.process_time()
    models = {
        # 24 layers of 1024, as many parameters as OPT-350M.
        batch: build_gpt(24, 1024, 16, 50272, batch, 1024, dtype="f16")
        for batch in batches
    }
    programs = TunedPrograms(
        models, recomputing(ratios, "full").recorded(), load_cluster(CLUSTER), train
    )
    plans = [GridPlan(batch, d=8, zero=3) for batch in batches]
    tuner = Tuner(TuningSpace(programs.sequence, plans), programs, jobs=1)
    tuner.exhaustive(prune=False)
    seconds = time.process_time() - before
    assert len(tuner.trials) == 91
    results = {_place(p): r for p, r in tuner.trials.items()}
    known = {p: r for p, r in results.items() if isinstance(r, Simulated)}
    ran = [place for place, value in measured.items() if value is not None]
    found = replay(tuner, measured)
    predicted = [known[place].throughput_samples_per_s for place in ran]
    wanted = [measured[place] or 0.0 for place in ran]
    ratio = [p / w for p, w in zip(predicted, wanted, strict=True)]
    fitting = {place: known[place].peak_memory_bytes for place in ran}
    needed = [known[p].peak_memory_bytes for p in measured if measured[p] is None]
    capacities = sorted([*fitting.values(), *needed])
    right = max(
        sum(m <= c for m in fitting.values()) + sum(m > c for m in needed)
        for c in capacities
    )
    best = max(ran, key=lambda place: measured[place] or 0.0)
    yield (
        f"- **Figure 10**, OPT-350M on 8 V100 (ZeRO 3), 13 batches x 7 ratios: all 91 points "
        f"simulated in {seconds:.0f} CPU s (goal 60). Throughput is "
        f"{min(ratio):.2f} to {max(ratio):.2f} times the published, from the data sheet alone; "
        f"Spearman over the {len(ran)} points that ran {rank_correlation(predicted, wanted):.3f}; "
        f"with one capacity {right} of 91 verdicts on memory are right."
    )
    yield (
        f"- The published measurements, replayed in the order of `--tune measure`: the best "
        f"point, {best[0]} samples and a ratio of {best[1]}, is the run number "
        f"{found.until_best} (goal 8), and after {found.runs} runs, {found.out_of_memory} of them "
        f"out of memory, nothing better is expected. Slapo's descent: "
        f"{published['slapo_evaluations']} runs, {published['slapo_out_of_memory']} out of "
        f"memory."
    )


def _place(point: Point) -> tuple[int, float]:
    ratio = dict(point.chosen)["ratio"]
    assert isinstance(ratio, float)
    return point.plan.batch, ratio


def replay(tuner: Tuner, measured: dict[tuple[int, float], float | None]) -> Replay:
    """Runs points as `--tune measure` does, with published measurements for runs."""
    points = tuner.ranked
    results = [r for p in points if isinstance(r := tuner.trials[p], Simulated)]
    candidates = [candidate(p, r) for p, r in zip(points, results, strict=True)]
    corrections = Corrections(candidates, float(results[0].memory_bytes))
    best = max(value for value in measured.values() if value is not None)
    order: list[float | None] = []
    while (place := corrections.next()) is not None:
        order.append(measured[_place(points[place])])
        corrections.add(place, order[-1])
    until = order.index(best) + 1 if best in order else None
    return Replay(len(order), order.count(None), until)


Bar = tuple[str, int, float, float]
"""A system, its GPUs, and its samples/s as published and as simulated."""


def figure8() -> Iterator[str]:
    """
    GPT-10B as three systems run it, with the cluster's profile and from the data sheet alone;
    gives the lines of the report.
    """
    cluster = load_cluster(CLUSTER)
    profiled = list(bars(load_profiles(["auto"], cluster)))
    sheet = list(bars([]))
    found, alone = (
        rank_correlation([bar[2] for bar in own], [bar[3] for bar in own])
        for own in (profiled, sheet)
    )
    yield (
        f"- **Figure 8**, GPT-10B on 16, 32 and 64 V100, each system with the micro-batch that "
        f"is the best for it (Megatron-LM t=8 p=2, DeepSpeed ZeRO 3, Slapo the best of its "
        f"schedules): Spearman over the nine bars {found:.3f} with the profile V100, which is "
        f"the default, and {alone:.3f} from the data sheet alone (goal 0.9)."
    )
    yield ""
    yield "| samples/s, V100 / data sheet / published | 16 | 32 | 64 |"
    yield "|---|---|---|---|"
    for system in ("megatron", "deepspeed", "slapo"):
        own = [
            f"{bar[3]:.1f} / {other[3]:.1f} / {bar[2]:.1f}"
            for bar, other in zip(profiled, sheet, strict=True)
            if bar[0] == system
        ]
        yield f"| {system} | {' | '.join(own)} |"


def bars(profiles: Sequence[Profile]) -> Iterator[Bar]:
    """Simulates the bars of Figure 8."""
    published = DATA["figure8"]
    plain, fused = (
        build_gpt(48, 4096, 32, 50304, 256, 1024, dtype="f16", fused_attention=fused)
        for fused in (False, True)
    )
    for i, gpus in enumerate(published["gpus"]):
        zero3 = [GridPlan(256, d=gpus, zero=3, k=k) for k in (1, 2, 4)]
        pipelined = [GridPlan(256, d=gpus // 16, t=8, p=2, k=k) for k in (8, 16, 32)]
        tensor = [GridPlan(256, d=gpus // 8, t=8, zero=1, k=k) for k in (2, 4, 8)]
        for system, model, ratios, plans in (
            # Both baselines compute all layers again, and write attention out.
            ("megatron", plain, [1.0], pipelined),
            ("deepspeed", plain, [1.0], zero3),
            ("slapo", fused, [1.0, 0.5], [*zero3, *pipelined, *tensor]),
        ):
            programs = TunedPrograms(
                {256: model},
                recomputing(ratios, "whole").recorded(),
                load_cluster(CLUSTER, gpus),
                train,
                profiles,
            )
            tuner = Tuner(TuningSpace(programs.sequence, plans), programs, jobs=1)
            tuner.exhaustive()
            best = tuner.best
            assert best is not None
            result = tuner.trials[best]
            assert isinstance(result, Simulated)
            throughput = result.throughput_samples_per_s
            print(f"{system} on {gpus}: {best}, {throughput:.2f} samples/s", flush=True)
            yield system, gpus, published[system][i], throughput


def figure9() -> Iterator[str]:
    """A BERT of 0.96 billion parameters, step by step; gives the lines of the report."""
    published = DATA["figure9"]["speedup"]
    batches = {1: (4, 8, 12, 16, 20, 24), 8: (32, 64, 96, 128, 160, 192)}
    profiles = load_profiles(["V100"], load_cluster(CLUSTER))

    # 24 layers of 1792 in 16 heads: an encoder costs what a decoder of its sizes does.
    def fastest(fused: bool, tensor: int, split: bool) -> tuple[float, int]:
        s = Schedule()
        embedding = s["transformer.wte"].param("weight")
        if split:
            embedding.split(0, "t")
        else:
            # A script of Slapo that leaves the embedding whole computes all logits on
            # every device; by themselves layouts would split them nevertheless.
            embedding.whole("t")
            s["lm_head"].out(0).whole("t")
        models = {
            batch: build_gpt(
                24, 1792, 16, 30528, batch, 512, dtype="f16", fused_attention=fused
            )
            for batch in batches[tensor]
        }
        programs = TunedPrograms(
            models, s.recorded(), load_cluster(CLUSTER), train, profiles
        )
        plans = [GridPlan(batch, t=tensor) for batch in models]
        tuner = Tuner(TuningSpace(programs.sequence, plans), programs, jobs=1)
        tuner.exhaustive(prune=False)
        best = tuner.best
        assert best is not None
        result = tuner.trials[best]
        assert isinstance(result, Simulated)
        return result.throughput_samples_per_s, best.plan.batch

    plain, _ = fastest(False, 1, False)
    steps = {
        "kernels on one device": fastest(True, 1, False),
        "tensor parallelism on 8": fastest(True, 8, False),
        "the embedding split too": fastest(True, 8, True),
    }
    found = [throughput / plain for throughput, _ in steps.values()]
    pairs = zip(steps.items(), found, published, strict=True)
    shown = [
        f"{name} {own:.2f} (published {wanted:.2f}; batch {batch})"
        for (name, (_, batch)), own, wanted in pairs
    ]
    yield (
        f"- **Figure 9**, BERT of 0.96 billion parameters, each step with the largest throughput "
        f"of its batches, over the plain model on one device, with the profile V100: {', '.join(shown)} (goal: "
        f"within 15 %). Where the embedding is whole, the schedule asks for whole logits too, as "
        f'Slapo computes them (`s["lm_head"].out(0).whole("t")`); by themselves layouts split '
        f"them nevertheless."
    )


def write_docs(lines: list[str]) -> None:
    """Replaces the section in docs/benchmarks.md."""
    text = DOCS.read_text("utf-8")
    section = "\n".join([HEADING, "", "`python bench/slapo.py`:", "", *lines]) + "\n"
    pattern = re.compile(rf"^{re.escape(HEADING)}$.*?(?=^## |^<!-- |\Z)", re.M | re.S)
    if pattern.search(text):
        text = pattern.sub(lambda _: section + "\n", text)
    else:
        text = f"{text.rstrip()}\n\n{section}"
    DOCS.write_text(text.rstrip() + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    figures: dict[str, Any] = {
        "figure10": figure10,
        "figure8": figure8,
        "figure9": figure9,
    }
    parser.add_argument("--only", nargs="*", choices=figures, default=list(figures))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    # Programs are large structures: to look for garbage in them would take a fifth of the time.
    gc.freeze()
    gc.disable()
    lines: list[str] = []
    for name in arguments.only:
        for line in figures[name]():
            print(line, flush=True)
            lines.append(line)
        gc.collect()
    if arguments.write:
        write_docs(lines)


if __name__ == "__main__":
    main()
