"""
The communication that `distir calibrate` measures between two devices: every collective,
and sends.
"""

from __future__ import annotations

from collections.abc import Iterator

from distir.lowering.calibration.probe import CommunicationProbe, Probe, tensor

ROWS = (8, 64, 256, 512, 1024, 2048, 8192)
WIDTH = 256
"""Rows and columns of buffers: 8 kB to 8 MB of f32."""

_CLUSTER = (
    "device.cluster @machine {",
    "  device.kind @device on [0 to 2] {memory = 1000000000 : i64, memory_bandwidth = "
    "1.0e+10 : f64, peak_flops = {default = 1.0e+10 : f64}, launch_latency = 0.0 : f64}",
    "  device.link @link spans 2 {bandwidth = 1.0e+09 : f64, latency = 0.0 : f64}",
    "}",
)
_MESH = (*_CLUSTER, 'device.mesh @m on @machine <"d" = 2> [0, 1]')
_PAIR = (
    *_CLUSTER,
    "device.mesh @a on @machine <> [0]",
    "device.mesh @b on @machine <> [1]",
)


def communication_probes(element: str = "f32", scale: int = 1) -> list[Probe]:
    """
    Returns all communication probes for one element type; their buffers are `scale` times
    as large as by default.
    """
    sizes = [rows * scale for rows in ROWS]
    return [
        *(probe for rows in sizes for probe in _collectives(rows, element)),
        *(_round_trip(rows, element) for rows in sizes),
    ]


def _laid_out(rows: int, element: str, mesh: str, layout: str = "") -> str:
    encoding = f"#dist.layout<@{mesh}{', ' if layout else ''}{layout}>"
    return f"{tensor(rows, WIDTH, element=element)[:-1]}, {encoding}>"


def _bytes(rows: int, element: str) -> int:
    return rows * WIDTH * int(element.lstrip("bf")) // 8


def _collectives(rows: int, element: str) -> Iterator[Probe]:
    whole = _laid_out(rows, element, "m")
    partial = _laid_out(rows, element, "m", "partial sum {d}")
    by_row = _laid_out(rows, element, "m", "[{d}, {}]")
    by_column = _laid_out(rows, element, "m", "[{}, {d}]")
    for name, before, after in (
        ("all_reduce", partial, whole),
        ("all_gather", by_row, whole),
        ("reduce_scatter", partial, by_row),
        ("all_to_all", by_row, by_column),
        ("slice", whole, by_row),
    ):
        filed, arguments, results = f"collective.{name}", {"x": before}, {"y": after}
        body = [f'%y = {filed} %x over ["d"] : {before} -> {after}']
        if name == "slice":  # Its time is not communication.
            yield Probe(filed, arguments, body, results, prologue=_MESH)
        else:
            size = _bytes(rows, element)
            yield CommunicationProbe(
                filed, arguments, body, results, prologue=_MESH, kind=name, size=size
            )


def _round_trip(rows: int, element: str) -> Probe:
    """
    Returns a probe of a send there and back, so that the second send cannot start before
    the first arrives.
    """
    here, there = _laid_out(rows, element, "a"), _laid_out(rows, element, "b")
    return CommunicationProbe(
        "dist.send",
        {"x": here},
        [
            f"%y = dist.send %x {{dist.asynchronous}} : {here} -> {there}",
            f"%z = dist.send %y {{dist.asynchronous}} : {there} -> {here}",
        ],
        {"z": here},
        kind="send",
        size=_bytes(rows, element),
        prologue=_PAIR,
    )
