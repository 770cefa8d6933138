"""Prints a service plan as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from distir.frontends.models.step_builder import StepFormats
from distir.planning.serving.planned import PlannedService
from distir.planning.serving.plans import LoadPoint
from distir.serving.metrics import PERCENTILES
from distir.tools.reports.reporting import seconds_text, table

_LISTED = 10
"""The most rows of a table of plans."""


def print_service(planned: PlannedService, file: IO[str] | None = None) -> None:
    """
    Prints a service plan, its latencies and the competing plans to `file`, by default
    to the standard output.
    """
    found = planned.result
    for line in headline(planned):
        print(line, file=file)
    shown = [
        ("at its highest load", found.best),
        ("at the rate asked for", found.at_rate),
    ]
    rows = [_latencies(name, point) for name, point in shown if point is not None]
    if rows:
        heads = [f"{name} p{p}" for name in ("TTFT", "TPOT") for p in PERCENTILES]
        print("\nlatencies", file=file)
        table(["", "requests/s", *heads, "batch", "preempted"], rows, file)
    if found.highest:
        print("\nplans at their highest load within the limits", file=file)
        _points(planned, _distinct(found.highest), file)
    if found.front:
        print(
            "\nPareto front: nothing has more tokens/s a device with as short a TPOT",
            file=file,
        )
        _points(planned, found.front, file)
    if found.refused:
        print("\nreplicas that cannot serve these requests", file=file)
        rows = [[str(r.shape), r.reason] for r in found.refused]
        for shape, reason in rows:
            print(f"  {shape}: {reason}", file=file)
    print(
        f"\nstep times: {found.simulations} simulations of steps, interpolated; the "
        f"largest error where it was checked: {found.error:.1%}",
        file=file,
    )


def headline(planned: PlannedService) -> list[str]:
    """Returns the lines with the inputs of the search and the best plan."""
    sizes, limits, found = planned.sizes, planned.limits, planned.result
    given = [
        f"{name} at most {seconds_text(value)}"
        for name, value in (("TTFT", limits.ttft_s), ("TPOT", limits.tpot_s))
        if value < float("inf")
    ]
    kept = f" for {limits.percentile}% of requests" if given else ""
    lines = [
        f"model: {sizes.layers} layers, {sizes.parameters / 1e9:.4g} billion parameters "
        f"in {sizes.dtype}{_fewer_bits(sizes.formats)}",
        f"requests: {planned.prompt:.6g} + {planned.generate:.6g} tokens"
        f"{''.join(f', {g}' for g in given)}{kept}",
    ]
    best = found.best
    if best is None:
        lines.append(
            f"no plan on {planned.devices} devices keeps the limits; raise them, or give "
            f"more devices"
        )
        return lines
    lines.append(
        f"plan: {best.plan}, on {best.plan.devices} devices: {best.tokens_per_s:.0f} "
        f"tokens/s ({best.tokens_per_s_and_device:.1f} a device), {best.rate:.4g} "
        f"requests/s"
    )
    if planned.rate is not None and found.needed is not None:
        needed = found.needed.devices
        lines.append(
            f"needed: {planned.rate:.4g} requests/s need {needed} "
            f"device{'' if needed == 1 else 's'}: {found.needed}"
        )
    return lines


def _fewer_bits(formats: StepFormats) -> str:
    """
    Returns a sentence that names the formats of weights and caches with fewer bits.
    """
    given = (("weights", formats.weights), ("caches", formats.cache))
    return "".join(f", {name} in {kind}" for name, kind in given if kind is not None)


def _latencies(name: str, point: LoadPoint) -> list[str]:
    metrics = point.metrics
    return [
        name,
        f"{point.rate:.4g}",
        *(seconds_text(metrics.ttft_s(p)) for p in PERCENTILES),
        *(seconds_text(metrics.tpot_s(p)) for p in PERCENTILES),
        str(metrics.largest_batch),
        str(metrics.preemptions),
    ]


def _points(
    planned: PlannedService, points: Sequence[LoadPoint], file: IO[str] | None
) -> None:
    percentile = f"p{planned.limits.percentile}"
    table(
        [
            "plan",
            "devices",
            "tokens/s a device",
            "requests/s",
            f"TTFT {percentile}",
            f"TPOT {percentile}",
            "tokens a step",
        ],
        [
            [
                str(p.plan),
                str(p.plan.devices),
                f"{p.tokens_per_s_and_device:.1f}",
                f"{p.rate:.4g}",
                seconds_text(p.ttft_s),
                seconds_text(p.tpot_s),
                str(p.plan.generating.limits.batched_tokens),
            ]
            for p in points[:_LISTED]
        ],
        file,
    )


def _distinct(points: Sequence[LoadPoint]) -> list[LoadPoint]:
    """Returns the first point of each plan, in the order of `points`."""
    seen: dict[str, LoadPoint] = {}
    for point in points:
        seen.setdefault(str(point.plan), point)
    return list(seen.values())
