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
from html import escape
from math import log10
from pathlib import Path
from typing import NamedTuple

from paper import MODELS, WORLD_SIZE, Source
from report import DOCUMENT
from simulator import least

from distir.errors import DistIRError
from distir.interpreters.cost import simulate
from distir.passes.search import Evaluator, Space
from distir.tools.svg import LogAxis, line, text

SAMPLES = 6
"""Programs of each model."""

_WIDTH, _HEIGHT = 760, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 30, 50, 60
_COLORS = {"op by op": "#d65f00", "with summaries": "#4878a8"}
_STYLE = "text { font: 13px sans-serif; fill: #222 } .grid { stroke: #ddd }"


class Timing(NamedTuple):
    """A program: what it is, how many ops it has, seconds of either way to simulate it."""

    name: str
    ops: int
    flat_s: float
    usual_s: float


def timings() -> list[Timing]:
    """Those of the sample."""
    found: list[Timing] = []
    for model in MODELS:
        if model.trains:
            continue
        evaluator = Evaluator(Source(model))
        space = Space(model.batches, trains=False, devices=WORLD_SIZE)
        drawn = random.Random(7).sample(space.configurations(), 4 * SAMPLES)
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
    """The power of the number of ops that seconds grow with."""
    x, y = ([log10(p[i]) for p in points] for i in (0, 1))
    return statistics.linear_regression(x, y).slope


def draw(series: dict[str, list[tuple[str, int, float]]]) -> str:
    """Seconds over ops, both axes logarithmic, as SVG text."""
    points = [p for some in series.values() for p in some]
    x = LogAxis([ops for _, ops, _ in points], _LEFT, _WIDTH - _RIGHT)
    y = LogAxis([s for _, _, s in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for value in x.ticks():
        parts.append(line(x(value), y.start, x(value), y.end, "grid"))
        parts.append(text(x(value), _HEIGHT - _BOTTOM + 20, f"{value:g}", "middle"))
    for value in y.ticks():
        parts.append(line(x.start, y(value), x.end, y(value), "grid"))
        parts.append(text(_LEFT - 8, y(value) + 4, f"{value:g} s", "end"))
    parts.append(text((x.start + x.end) / 2, _HEIGHT - 16, "ops", "middle"))
    for i, (name, some) in enumerate(series.items()):
        color, at = _COLORS[name], _LEFT + 160 * i
        parts.append(f'<circle cx="{at}" cy="28" r="4" fill="{color}"/>')
        parts.append(text(at + 12, 32, name, "start"))
        for label, ops, seconds in some:
            shown = escape(f"{label}: {ops} ops, {seconds:.3g} s")
            parts.append(
                f'<circle cx="{x(ops):.1f}" cy="{y(seconds):.1f}" r="3.5" fill="{color}" '
                f'fill-opacity="0.8"><title>{shown}</title></circle>'
            )
    return "\n".join([*parts, "</svg>", ""])


def section(data: Path | None) -> str:
    """The section of `docs/benchmarks.md`; draws the figure beside it."""
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
    print(section(None))
