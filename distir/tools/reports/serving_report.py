"""The HTML report of a service plan: a single file with plots, without scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from io import StringIO
from math import inf
from pathlib import Path

from distir.errors import DistIRError
from distir.planning.serving.planned import PlannedService
from distir.planning.serving.plans import LoadPoint
from distir.serving.metrics import PERCENTILES
from distir.system.output_files import write_text
from distir.tools.reports.serving_tables import headline, print_service
from distir.tools.reports.svg import Chart, document, line

_WIDTH, _HEIGHT = 760, 460
_COLORS = ("#4878a8", "#d65f00", "#5a9e4b", "#8c5fa8", "#a87848", "#409898")
_STYLE = ".limit { stroke: #b00; stroke-dasharray: 5 4 } .front { stroke: #222 }"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1em }} svg {{ max-width: 100% }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def write_serving_report(planned: PlannedService, path: Path) -> None:
    """
    Writes the HTML report of a service plan to `path`. Raises DistIRError if the file
    cannot be written.
    """
    try:
        write_text(path, serving_report(planned))
    except OSError as error:
        raise DistIRError(f"cannot write {path}: {error.strerror}") from error


def serving_report(planned: PlannedService) -> str:
    """Returns the report of a service plan as an HTML page."""
    title = f"A service with {planned.program} on {planned.cluster}"
    return _PAGE.format(title=escape(title), body=serving_body(planned))


def serving_body(planned: PlannedService) -> str:
    """Returns the content of the report as HTML, without the frame of the page."""
    text = StringIO()
    print_service(planned, text)
    parts = [
        *(f"<p>{escape(line)}</p>" for line in headline(planned)),
        "<h2>Throughput and time per token</h2>",
        "<p>Each dot is a simulated load of a plan, pale where a limit is exceeded. The "
        "line is the Pareto front, the dashed line the limit.</p>",
        throughput_plot(planned),
        "<h2>Latencies and load</h2>",
        "<p>Of one replica of the best plan, or of the whole service where that was "
        "simulated.</p>",
        latency_plot(planned, "time to the first token [s]", _ttft),
        latency_plot(planned, "time per token [s]", _tpot),
        "<h2>Numbers</h2>",
        f"<pre>{escape(text.getvalue())}</pre>",
    ]
    return "\n".join(parts)


def throughput_plot(planned: PlannedService) -> str:
    """
    Returns a plot of the tokens per second and device over the time per token as SVG
    text, or "" if there are no points.
    """
    points = [p for p in planned.result.points if p.rate < inf and p.tpot_s > 0]
    if not points:
        return ""
    limit = planned.limits.tpot_s
    xs = [p.tpot_s * 1e3 for p in points] + ([limit * 1e3] if limit < inf else [])
    chart = Chart(
        _WIDTH, _HEIGHT, 30, 40, xs, [p.tokens_per_s_and_device for p in points]
    )
    percentile = planned.limits.percentile
    parts = chart.grid(
        f"time per token, p{percentile} [ms]", "tokens per second and device"
    )
    if limit < inf:
        at = chart.x(limit * 1e3)
        parts.append(line(at, chart.y.start, at, chart.y.end, "limit"))
    front = planned.result.front
    path = " ".join(
        f"{chart.x(p.tpot_s * 1e3):.1f},{chart.y(p.tokens_per_s_and_device):.1f}"
        for p in front
        if p.tpot_s > 0
    )
    parts.append(f'<polyline class="front" fill="none" points="{path}"/>')
    colors = _colors(points)
    for p in points:
        look = f'fill="{colors[_family(p)]}"'
        if not p.is_within:
            look += ' fill-opacity="0.35"'
        tip = f"{p.plan}: {p.rate:.4g} requests/s, TTFT {p.ttft_s:.3g} s"
        parts.append(chart.dot(p.tpot_s * 1e3, p.tokens_per_s_and_device, look, tip))
    return document(_WIDTH, _HEIGHT, _STYLE, parts) + _legend(colors)


def latency_plot(
    planned: PlannedService, title: str, of: Callable[[LoadPoint, float], float]
) -> str:
    """
    Returns a plot of the percentiles of a latency over the load as SVG text, for plans
    with the same shapes of replicas as the best plan. `of` returns a percentile of the
    latency at a load point, in seconds. Returns "" without a best plan or points.
    """
    best = planned.result.best
    if best is None:
        return ""
    family = _family(best)
    points = sorted(
        (p for p in planned.result.points if _family(p) == family and p.rate < inf),
        key=lambda p: p.rate / p.plan.devices,
    )
    ys = [of(p, q) for p in points for q in PERCENTILES if of(p, q) > 0]
    if not ys:
        return ""
    xs = [p.rate / p.plan.devices for p in points]
    chart = Chart(_WIDTH, _HEIGHT, 30, 40, xs, ys)
    parts = chart.grid("requests per second and device", title)
    for color, percentile in zip(_COLORS[: len(PERCENTILES)], PERCENTILES, strict=True):
        for p in points:
            if (value := of(p, percentile)) > 0:
                tip = f"p{percentile} of {p.plan} at {p.rate:.4g} requests/s: {value:.3g} s"
                look = f'fill="{color}"'
                parts.append(chart.dot(p.rate / p.plan.devices, value, look, tip))
    legend = {
        f"p{q}": c
        for c, q in zip(_COLORS[: len(PERCENTILES)], PERCENTILES, strict=True)
    }
    return document(_WIDTH, _HEIGHT, _STYLE, parts) + _legend(legend)


def _ttft(point: LoadPoint, percentile: float) -> float:
    return point.metrics.ttft_s(percentile)


def _tpot(point: LoadPoint, percentile: float) -> float:
    return point.metrics.tpot_s(percentile)


def _family(point: LoadPoint) -> str:
    """Returns a name that is equal for plans with the same shapes of replicas."""
    plan = point.plan
    if plan.reading is None:
        return str(plan.generating.shape)
    return f"prefill {plan.reading.shape}, decode {plan.generating.shape}"


def _colors(points: Sequence[LoadPoint]) -> dict[str, str]:
    families = sorted({_family(p) for p in points})
    return {f: _COLORS[i % len(_COLORS)] for i, f in enumerate(families)}


def _legend(colors: dict[str, str]) -> str:
    items = "".join(
        f'<span style="color:{color}">&#9679;</span> {escape(name)} &nbsp; '
        for name, color in colors.items()
    )
    return f"<p>{items}</p>"
