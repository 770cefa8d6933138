"""Draws the curves of Rhino's Figures 7 to 10 from simulated steps, as an SVG file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Protocol

from distir.tools.reports.svg import Chart, document, text

_WIDTH, _HEIGHT, _TOP, _RIGHT = 460, 360, 66, 24
_COLORS = "#4878a8", "#d65f00", "#3a923a", "#b04040"
_PLATFORMS = {"v100-roce": "M8", "v100-pcie-roce": "S1"}
_NAMES = {"bert": "DNABERT", "unet": "UNet", "vgg": "VGG19, a million classes"}


class Row(Protocol):
    """A simulated step: 0 s if the program does not fit."""

    @property
    def what(self) -> str: ...
    @property
    def devices(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def plan(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def share(self) -> float: ...


Curves = dict[str, list[tuple[float, float, str]]]
"""Points (x, y, label) of each curve, by its name."""


def _curves(
    rows: Sequence[Row],
    name: Callable[[Row], str],
    y: Callable[[Row], float],
    x: Callable[[Row], float],
) -> Curves:
    found: Curves = {}
    for row in rows:
        if row.seconds:
            label = f"{row.what}, {row.devices} devices: {y(row):.4g}"
            found.setdefault(name(row), []).append((x(row), y(row), label))
    return {key: sorted(points) for key, points in found.items()}


def _devices(row: Row) -> float:
    return row.devices


def _percent(row: Row) -> float:
    return 100 * row.share


def _rate(row: Row) -> float:
    return row.batch / row.seconds


def _family(row: Row) -> str:
    model, _, platform = row.what.partition(" ")
    return f"{model.split('-')[0]} {_PLATFORMS.get(platform, '')}".strip()


def _layers(row: Row) -> float:
    return int(row.what.split()[1])


def _level(row: Row) -> str:
    return f"{row.plan.removeprefix('searched, ')} on {row.devices}"


def _other(row: Row) -> str:
    return _NAMES.get(row.what, row.what.split()[0])


def panels(
    found: Mapping[str, Sequence[Row]],
) -> Iterator[tuple[str, str, str, Curves]]:
    """
    Yields the title, the titles of both axes, and the curves of each panel. `found` has
    the rows of each experiment of `rhino.py`.
    """
    for name, title in (
        ("full", "Full parallelism, M8 (Figure 7)"),
        ("spmd", "SPMD alone (Figure 8)"),
        ("pipeline", "Pipelines alone (Figure 8)"),
    ):
        curves = _curves(found[name], _family, _percent, _devices)
        yield title, "devices", "share of the peak [%]", curves
    curves = _curves(found["strong"], _family, _rate, _devices)
    yield "GPT-Medium, batch 4 (Figure 8e)", "devices", "samples/s", curves
    curves = _curves([*found["others"], *found["wide"]], _other, _rate, _devices)
    yield "Other models, M8 (Figure 9)", "devices", "samples/s", curves
    curves = _curves(found["levels"], _level, _rate, _layers)
    yield "GPTs of width 512 (Figure 10)", "layers", "samples/s", curves


def draw(found: Mapping[str, Sequence[Row]]) -> str:
    """Returns the panels in two rows of three, as SVG text; all axes are logarithmic."""
    parts: list[str] = []
    for i, (title, x_title, y_title, curves) in enumerate(panels(found)):
        shift = f"translate({i % 3 * _WIDTH} {i // 3 * _HEIGHT})"
        parts += [f'<g transform="{shift}">', *_panel(title, x_title, y_title, curves)]
        parts.append("</g>")
    style = "polyline { fill: none; stroke-width: 1.5 }"
    return document(3 * _WIDTH, 2 * _HEIGHT, style, parts)


def _panel(title: str, x_title: str, y_title: str, curves: Curves) -> Iterator[str]:
    points = [point for some in curves.values() for point in some]
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    if "%" in y_title:
        ys += [10.0, 100.0]  # the same scale for all panels
    chart = Chart(_WIDTH, _HEIGHT, _RIGHT, _TOP, xs, ys)
    yield (
        f'<text x="{Chart.LEFT}" y="22" style="font-weight: bold">{escape(title)}</text>'
    )
    yield from chart.grid(x_title, y_title)
    at = Chart.LEFT
    for color, (name, some) in zip(_COLORS[: len(curves)], curves.items(), strict=True):
        yield f'<circle cx="{at + 4}" cy="42" r="4" fill="{color}"/>'
        yield text(at + 12, 46, name, "start")
        at += 30 + 7 * len(name)
        line = " ".join(f"{chart.x(x):.1f},{chart.y(y):.1f}" for x, y, _ in some)
        yield f'<polyline points="{line}" stroke="{color}"/>'
        for x, y, label in some:
            yield chart.dot(x, y, f'fill="{color}"', f"{name}: {label}")
