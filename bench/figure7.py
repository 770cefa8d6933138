"""
Figure 7 of the DistIR paper: `python bench/figure7.py`.

The paper times its simulator on distributed GPT-2 models drawn from the grid of its section
5 and finds that the time grows linearly with the number of ops. Here the same grid is drawn from,
the same configurations each time, and each program is simulated twice: op by op on every
device (`flat=True`), as the paper's simulator works, and as usual, where a function is executed once
however often it is called. CPU seconds from the distributed module to the result, the least
of several runs.
"""

from __future__ import annotations

import gc
import random
import statistics
from math import log10
from typing import NamedTuple

from paper import MODELS, WORLD_SIZE, Source
from report import DOCUMENT
from simulator import least

from distir.errors import DistIRError
from distir.interpreters.simulator import simulate
from distir.planning.grid import Evaluator, Space
from distir.tools.reports.svg import Chart, document, text

SAMPLES = 6
"""The number of programs of each model."""

_WIDTH, _HEIGHT = 760, 480
_COLORS = {"op by op": "#d65f00", "with summaries": "#4878a8"}


class Timing(NamedTuple):
    """
    A program: its description, its number of ops, and the seconds of either way to simulate
    it.
    """

    name: str
    ops: int
    flat_s: float
    usual_s: float


def timings() -> list[Timing]:
    """Returns the timings of the sample."""
    found: list[Timing] = []
    for model in MODELS:
        if model.trains:
            continue
        evaluator = Evaluator(Source(model))
        space = Space(model.batches, trains=False, devices=WORLD_SIZE, buckets=False)
        drawn = random.Random(7).sample(space.plans(), 4 * SAMPLES)
        left = SAMPLES
        for configuration in drawn:
            try:
                module = evaluator.distributed(configuration)
            except DistIRError:
                continue
            gc.collect()
            name = f"{model.name}, {configuration}"
            ops = simulate(module, flat=True).ops
            flat = least(lambda m=module: simulate(m, flat=True))
            found.append(Timing(name, ops, flat, least(lambda m=module: simulate(m))))
            left -= 1
            if not left:
                break
    return found


def slope(points: list[tuple[int, float]]) -> float:
    """Returns the power of the number of ops with which seconds grow."""
    x, y = ([log10(p[i]) for p in points] for i in (0, 1))
    return statistics.linear_regression(x, y).slope


def draw(series: dict[str, list[tuple[str, int, float]]]) -> str:
    """Draws seconds over ops, both axes logarithmic; returns SVG text."""
    points = [p for some in series.values() for p in some]
    sizes, times = [ops for _, ops, _ in points], [s for _, _, s in points]
    chart = Chart(_WIDTH, _HEIGHT, 30, 50, sizes, times)
    parts = chart.grid("ops", "CPU seconds")
    for i, (name, some) in enumerate(series.items()):
        color, at = _COLORS[name], Chart.LEFT + 160 * i
        parts.append(f'<circle cx="{at}" cy="28" r="4" fill="{color}"/>')
        parts.append(text(at + 12, 32, name, "start"))
        for label, ops, seconds in some:
            shown = f"{label}: {ops} ops, {seconds:.3g} s"
            look = f'fill="{color}" fill-opacity="0.8"'
            parts.append(chart.dot(ops, seconds, look, shown))
    return document(_WIDTH, _HEIGHT, "", parts)


def section() -> str:
    """Draws the figure and returns the section of `docs/benchmarks.md`."""
    found = timings()
    series = {
        "op by op": [(t.name, t.ops, t.flat_s) for t in found],
        "with summaries": [(t.name, t.ops, t.usual_s) for t in found],
    }
    folder = DOCUMENT.parent / "figures"
    folder.mkdir(exist_ok=True)
    (folder / "figure7.svg").write_text(draw(series), "utf-8")
    powers = {n: slope([(o, s) for _, o, s in some]) for n, some in series.items()}
    rate = statistics.median(t.ops / t.flat_s for t in found)
    largest = max(found, key=lambda t: t.ops)
    return f"""### Figure 7

The paper times its simulator on distributed GPT-2 models drawn from the grid, and finds that
the time grows linearly with the number of ops. `python bench/figure7.py` does the same with
{len(found)} programs of {min(t.ops for t in found):,} to {largest.ops:,} ops: [the figure](figures/figure7.svg).
Op by op (`flat=True`) the time grows with the power {powers["op by op"]:.2f} of the number of ops, at {rate:,.0f} ops/s
(median). With summaries, the default, it grows with the power {powers["with summaries"]:.2f}: the largest program takes
{largest.flat_s:.2f} s op by op and {largest.usual_s:.2f} s with them. CPU seconds from the distributed module to the result.
"""


if __name__ == "__main__":
    print(section())
