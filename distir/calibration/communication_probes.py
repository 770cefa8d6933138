"""
The communication that `distir calibrate` measures between two devices: every
collective, and sends.

Communication is measured between computations, as in a program. Without computations,
communication would be faster than in a program, where two devices never arrive at the
same moment, and threads that wait for messages have to be woken. Therefore each probe
alternates a matrix product and the communication. Each probe has a silent twin, which
is the same program without the communication. The difference of the two times is the
measured time of the communication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distir.calibration.probe import CommunicationProbe, Probe, tensor

ROWS = (8, 64, 256, 512, 1024, 2048, 8192)
WIDTH = 256
"""
The number of columns of buffers. With the numbers of rows in `ROWS`, buffers have 8 kB
to 8 MB of f32.
"""

PRODUCT = (256, 512, 512)
"""
Rows, inputs and outputs of the matrix product before each communication: the sizes of a
small layer.
"""

_CLUSTER = (
    "device.cluster @machine {",
    "  device.kind @device on [0 to 2] {memory = 1000000000 : i64, memory_bandwidth = "
    "1.0e+10 : f64, peak_flops = {default = 1.0e+10 : f64}, launch_latency = 0.0 : f64}",
    "  device.link @link spans 2 {bandwidth = 1.0e+09 : f64, latency = 0.0 : f64}",
    "}",
)
_MESH = (*_CLUSTER, "device.mesh @m on @machine <d = 2> [0, 1]")
_PAIR = (
    *_CLUSTER,
    "device.mesh @a on @machine <> [0]",
    "device.mesh @b on @machine <> [1]",
)


def communication_probes(element: str = "f32", scale: int = 1) -> list[Probe]:
    """
    Returns all communication probes for one element type, each followed by the same
    program without the communication. `scale` multiplies the number of rows of buffers
    and of matrix products.
    """
    return [
        probe
        for rows in (rows * scale for rows in ROWS)
        for probe in (
            *_collectives(rows, element, scale),
            *_round_trip(rows, element, scale),
        )
    ]


def _on(type_: str, mesh: str, layout: str = "") -> str:
    """
    Returns the text of the tensor type `type_` with `layout` on `mesh`, or `type_`
    itself if `mesh` is empty.
    """
    if not mesh:
        return type_
    return f"{type_[:-1]}, #dist.layout<@{mesh}{', ' if layout else ''}{layout}>>"


def _buffer(rows: int, element: str, mesh: str, layout: str = "") -> str:
    return _on(tensor(rows, WIDTH, element=element), mesh, layout)


def _bytes(rows: int, element: str) -> int:
    return rows * WIDTH * int(element.lstrip("bf")) // 8


@dataclass(frozen=True)
class _Product:
    """A matrix product: the types of its operands and of its result, as text."""

    left: str
    right: str
    result: str

    @staticmethod
    def on(mesh: str, element: str, scale: int) -> _Product:
        """
        Returns a matrix product of the sizes in `PRODUCT`, with the rows multiplied by
        `scale`. Its tensors are replicated on `mesh`; they have no layout if `mesh` is
        empty.
        """
        rows, inputs, outputs = PRODUCT
        shapes = ((rows * scale, inputs), (inputs, outputs), (rows * scale, outputs))
        return _Product(*(_on(tensor(*s, element=element), mesh) for s in shapes))

    def line(self, result: str, left: str, right: str) -> str:
        """
        Returns the line of a program that computes `result`, the product of the values
        `left` and `right`. All three are names of values.
        """
        types = f"({self.left}, {self.right}) -> {self.result}"
        return f"%{result} = onnx.MatMul(%{left}, %{right}) : {types}"


def _collectives(rows: int, element: str, scale: int) -> Iterator[Probe]:
    whole = _buffer(rows, element, "m")
    partial = _buffer(rows, element, "m", "partial sum {d}")
    by_row = _buffer(rows, element, "m", "[{d}, {}]")
    by_column = _buffer(rows, element, "m", "[{}, {d}]")
    size = _bytes(rows, element)
    product, alone = (_Product.on(mesh, element, scale) for mesh in ("m", ""))
    for name, before, after in (
        ("all_reduce", partial, whole),
        ("all_gather", by_row, whole),
        ("reduce_scatter", partial, by_row),
        ("all_to_all", by_row, by_column),
        ("slice", whole, by_row),
    ):
        op = f"collective.{name}"
        line = f"%y = {op} %x over [d] : {before} -> {after}"
        if name == "slice":  # which is no communication
            yield Probe(op, {"x": before}, [line], {"y": after}, prologue=_MESH)
            continue
        yield CommunicationProbe(
            op,
            {"a": product.left, "b": product.right, "x": before},
            [product.line("c", "a", "b"), line],
            {"c": product.result, "y": after},
            kind=name,
            size=size,
            prologue=_MESH,
            parameters=["b"],
        )
        yield CommunicationProbe(
            op,
            {"a": alone.left, "b": alone.right},
            [alone.line("c", "a", "b")],
            {"c": alone.result},
            kind=name,
            size=size,
            silent=True,
            parameters=["b"],
        )


def _round_trip(rows: int, element: str, scale: int) -> Iterator[Probe]:
    """
    Yields a probe that sends a buffer to the other device and back, and then the same
    probe without the communication. Each device computes a product while the other
    device waits. A `Relu` uses each message right after its arrival, because a program
    waits for a message only at the message's first use.
    """
    for silent in (False, True):
        meshes = ("", "") if silent else ("a", "b")
        here, there = (_buffer(rows, element, mesh) for mesh in meshes)
        first, second = (_Product.on(mesh, element, scale) for mesh in meshes)
        lines = [
            first.line("c", "a", "b"),
            f"%u = dist.send %x {{dist.asynchronous}} : {here} -> {there}",
            f"%v = onnx.Relu(%u) : ({there}) -> {there}",
            second.line("g", "e", "f"),
            f"%w = dist.send %v {{dist.asynchronous}} : {there} -> {here}",
            f"%y = onnx.Relu(%w) : ({here}) -> {here}",
        ]
        if silent:
            lines = [line for line in lines if "dist.send" not in line]
            lines = [line.replace("%u", "%x").replace("%w", "%v") for line in lines]
        yield CommunicationProbe(
            "dist.send",
            {
                "a": first.left,
                "b": first.right,
                "x": here,
                "e": second.left,
                "f": second.right,
            },
            lines,
            {"c": first.result, "g": second.result, "y": here},
            kind="send",
            size=_bytes(rows, element),
            prologue=() if silent else _PAIR,
            silent=silent,
            parameters=["b", "f"],
        )
