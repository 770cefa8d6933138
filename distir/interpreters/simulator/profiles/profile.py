"""
Profiles: the performance that a kind of device and its links reach in practice, beside
the figures of its data sheet.

A `Profile` is a JSON file (`docs/profiles.md` has the format): how well large and small ops
use a device, how long the host takes to issue one, what messages cost beyond their bytes.
Its figures are few and physical, so that they hold for shapes that nobody measured. Without
a profile the simulator uses the data sheet alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from distir.errors import DistIRError, one_of
from distir.interpreters.simulator.fusion import FUSIONS
from distir.interpreters.simulator.profiles.measured import OpFigures, OpTable
from distir.interpreters.simulator.profiles.table import Table
from distir.interpreters.simulator.work import Product

OP_CLASSES: Mapping[str, str | None] = {
    "contraction": None,
    "convolution": "contraction",
    "attention": "contraction",
    "attention_gradient": "attention",
    "elementwise": None,
    "normalization": "elementwise",
    "loss": "normalization",
    "optimizer": "elementwise",
    "gather": "elementwise",
}
"""
The classes of ops, each with the class whose curve is used if a profile lacks its own.
"""

SMALLEST_TILE = 16
"""Rows and columns of the smallest tiles, those of a tensor core's instructions."""

ALIGNMENT = 8
"""Elements that kernels of matrix products load at once: 16 bytes of 16-bit floats."""

SPLITS = (1, 2, 3, 4, 6, 8)
"""The numbers of parts into which the sums of a matrix product may be split."""


def _served_by(op_class: str) -> list[str]:
    """Returns a class and those whose curves serve it, in order of preference."""
    found: list[str] = []
    wanted: str | None = op_class
    while wanted is not None:
        found.append(wanted)
        wanted = OP_CLASSES[wanted]
    return found


DEFAULT = "default"
"""The name of the element type whose curves are used for types without their own."""


@dataclass(frozen=True)
class Curve:
    """
    The time that an op of a class takes on the device: `overhead` seconds, and then the
    longer of moving its bytes at `bandwidth` (a fraction of the memory's) and of computing.

    A product of matrices of `m x k` and `k x n` elements is computed in tiles of `tile`
    elements, on `units` parts of the device at the same time, at `efficiency` (a fraction
    of the peak); a tile takes as long as `k + depth` products for each of its elements.
    Tiles, and the last round of `units` tiles, that are not full cost as much as full ones,
    unless it pays to split the sums and to add their parts up in memory. If the rows of a
    matrix or of the result are no multiple of `ALIGNMENT` elements, kernels load elements
    one by one and reach the fraction `misaligned` of the efficiency.
    """

    bandwidth: float
    efficiency: float = 1.0
    overhead: float = 0.0
    tile: tuple[int, int] = (1, 1)
    units: int = 1
    depth: float = 0.0
    misaligned: float = 1.0

    def moving_seconds(self, moved: float, bandwidth: float) -> float:
        """
        Returns the seconds of an op that only moves bytes through a memory of that
        bandwidth.
        """
        return self.overhead + moved / (bandwidth * self.bandwidth)

    def seconds(
        self,
        flops: float,
        product: Product | None,
        moved: float,
        peak: float,
        bandwidth: float,
    ) -> float:
        """
        Returns the seconds of an op that computes; `product` describes it if it is a
        product of matrices.
        """
        memory = moved / (bandwidth * self.bandwidth)
        compute = flops / (peak * self.efficiency)
        if product is None or not product.k:
            return self.overhead + max(compute, memory)
        batch, m, n, k, lying = product
        # Kernels for products with few rows or columns use smaller tiles.
        rows, columns = (
            min(tile, -(-size // SMALLEST_TILE) * SMALLEST_TILE) if tile > 1 else 1
            for tile, size in zip(self.tile, (m, n), strict=True)
        )
        tiles = batch * math.ceil(m / rows) * math.ceil(n / columns)
        if any(row % ALIGNMENT for row in lying or (n, k)):
            compute /= self.misaligned
        each = rows * columns * self.units / (batch * m * n * k) * compute
        parts = 8 * batch * m * n / (bandwidth * self.bandwidth)
        best = math.inf
        for split in (1,) if self.units == 1 else SPLITS:
            busy = math.ceil(tiles * split / self.units) * (k / split + self.depth)
            added = parts * split if split > 1 else 0.0
            best = min(best, max(busy * each, memory) + added)
        return self.overhead + best

    @staticmethod
    def read(table: Table, computes: bool) -> Curve:
        """
        Reads a curve of a class that computes, or of one that memory alone bounds. Raises
        DistIRError.
        """
        if not computes:
            curve = Curve(
                table.positive("bandwidth"), 1.0, table.at_least_0("overhead")
            )
        else:
            curve = Curve(
                table.positive("bandwidth"),
                table.positive("efficiency"),
                table.at_least_0("overhead"),
                table.sizes("tile", (1, 1)),
                table.size("units", 1),
                table.at_least_0("depth", 0.0),
                table.positive("misaligned", 1.0),
            )
        table.finish()
        return curve


@dataclass(frozen=True)
class Dispatch:
    """
    The seconds in which the host issues an op or a collective, while the device works on
    earlier ones (see `distir.interpreters.simulator.engine.compiler`). A host that does not
    run `ahead` issues an op when the one before it is done, so that no op takes less than
    that. A collective then takes that much longer, as its devices wait for the last of
    their hosts.
    """

    op: float = 0.0
    collective: float = 0.0
    ahead: bool = True

    @staticmethod
    def read(table: Table) -> Dispatch:
        """
        Reads what the host needs per op, from the table `dispatch`. Raises DistIRError.
        """
        dispatch = Dispatch(
            table.at_least_0("op"),
            table.at_least_0("collective"),
            table.flag("ahead", True),
        )
        table.finish()
        return dispatch


@dataclass(frozen=True)
class LinkFigures:
    """
    A level of links in practice.

    - `bandwidth`: the fraction of the data sheet's bandwidth that large messages get, or
      that fraction by number of devices if rings get different numbers of links;
    - `overhead`: seconds once per collective; `latency`: seconds with every message;
    - `copy_bandwidth`: bytes/s at which a device adds up or copies data in its memory
      (infinite: at no cost);
    - `shared`: whether the devices of a block, such as a node, pass on to each other what
      one of them received over this level; if not, each receives all of it over its own
      adapter;
    - `occupies`: whether an asynchronous send keeps its sender busy, as in software that
      waits for it at once;
    - `kinds`: figures for single kinds of communication (`all_reduce`, `send`, ...), if a
      library does some of them worse than others.
    """

    bandwidth: float | Mapping[int, float]
    overhead: float = 0.0
    latency: float = 0.0
    copy_bandwidth: float = math.inf
    shared: bool = True
    occupies: bool = False
    kinds: Mapping[str, LinkFigures] = field(default_factory=dict[str, "LinkFigures"])

    def of_kind(self, kind: str) -> LinkFigures:
        """Returns the figures for a kind of communication."""
        return self.kinds.get(kind, self)

    def share(self, devices: int) -> float:
        """Returns the fraction of the bandwidth that a group of so many devices gets."""
        if not isinstance(self.bandwidth, Mapping):
            return self.bandwidth
        known = [size for size in self.bandwidth if size <= devices]
        return self.bandwidth[max(known, default=min(self.bandwidth))]

    @staticmethod
    def read(table: Table) -> LinkFigures:
        """Reads the figures of one level of links, from its table. Raises DistIRError."""
        kinds = table.tables("kinds", required=False)
        figures = LinkFigures(
            table.positive_by_size("bandwidth"),
            table.at_least_0("overhead"),
            table.at_least_0("latency"),
            table.positive("copy_bandwidth", math.inf),
            table.flag("shared", True),
            table.flag("occupies", False),
            {kind: LinkFigures.read(figures) for kind, figures in kinds.items()},
        )
        table.finish()
        return figures


@dataclass(frozen=True)
class MemoryFigures:
    """
    The memory of a device that software takes beside the values of the program.

    - `fragments`: the free memory that the allocator cannot use again, as a fraction of
      what comes and goes within a step;
    - `block`: the number of bytes in whose multiples memory is allocated;
    - `libraries`: bytes throughout (contexts, workspaces of matrix products);
      `communicator`: bytes for each group of devices that it communicates with;
    - `logit`: bytes for each 16-bit logit while a loss or its gradient is computed, of the
      copies in 32 bits.
    """

    fragments: float = 0.0
    block: int = 1
    libraries: int = 0
    communicator: int = 0
    logit: float = 0.0

    @staticmethod
    def read(table: Table) -> MemoryFigures:
        """Reads what a software keeps in memory, from its table. Raises DistIRError."""
        figures = MemoryFigures(
            table.at_least_0("fragments", 0.0),
            table.size("block", 1),
            int(table.at_least_0("libraries", 0.0)),
            int(table.at_least_0("communicator", 0.0)),
            table.at_least_0("logit", 0.0),
        )
        table.finish()
        return figures


@dataclass(frozen=True)
class Profile:
    """
    The figures of one kind of device.

    - `device`: the name of the kind in a cluster that the profile is for;
    - `compute`: by element type (`default` serves those that are not there) and class of
      ops, a curve;
    - `links`: by name of a `device.link`;
    - `fusion`: which ops run together (see `distir.interpreters.simulator.fusion`);
    - `ops`: by element type, figures of ops that were measured one by one;
    - `memory`: the bytes that the software keeps beside values;
    - `contention`: the share of a device that an asynchronous collective takes from the
      computation beside it.
    """

    name: str
    device: str
    compute: Mapping[str, Mapping[str, Curve]]
    dispatch: Dispatch = Dispatch()
    links: Mapping[str, LinkFigures] = field(default_factory=dict[str, LinkFigures])
    fusion: frozenset[str] = frozenset()
    ops: Mapping[str, OpTable] = field(default_factory=dict[str, OpTable])
    memory: MemoryFigures = MemoryFigures()
    contention: float = 0.0

    def curve(self, element_type: str, op_class: str) -> Curve:
        """Returns the curve for ops of a class on an element type. Raises DistIRError."""
        return self._curves.get((element_type, op_class)) or self._find(
            element_type, op_class
        )

    @cached_property
    def _curves(self) -> dict[tuple[str, str], Curve]:
        return {}

    def _find(self, element_type: str, op_class: str) -> Curve:
        one_of("class of ops", op_class, OP_CLASSES)
        for wanted in _served_by(op_class):
            for name in (element_type, DEFAULT):
                found = self.compute.get(name, {}).get(wanted)
                if found is not None:
                    self._curves[element_type, op_class] = found
                    return found
        raise DistIRError(
            f"profile {self.name} has no figures for {op_class} ops on {element_type}; "
            f"it has some for {', '.join(self.compute)}; add a {DEFAULT!r} to "
            f"`compute`, or use another profile"
        )

    def link(self, name: str) -> LinkFigures:
        """Returns the figures of a level of links. Raises DistIRError."""
        if name not in self.links:
            raise DistIRError(
                f"profile {self.name} has no figures for link @{name}; it has "
                f"{', '.join('@' + n for n in self.links) or 'none'}; add it to `links`"
            )
        return self.links[name]

    @staticmethod
    def parse(name: str, data: Any) -> Profile:
        """Returns the profile in the data of a JSON file. Raises DistIRError."""
        table = Table(f"profile {name}", data)
        table.text("description")
        device = table.text("device")
        compute: dict[str, dict[str, Curve]] = {}
        for element_type, classes in table.tables("compute").items():
            curves = compute[element_type] = dict[str, Curve]()
            for op_class, curve in classes.all_tables().items():
                one_of("class of ops", op_class, OP_CLASSES, classes.owner)
                computes = "contraction" in _served_by(op_class)
                curves[op_class] = Curve.read(curve, computes)
        dispatch = Dispatch.read(table.table("dispatch"))
        links = {
            link: LinkFigures.read(figures)
            for link, figures in table.tables("links").items()
        }
        ops = {
            element_type: {
                op: OpFigures.read(figures)
                for op, figures in of_type.all_tables().items()
            }
            for element_type, of_type in table.tables("ops", required=False).items()
        }
        fusion = table.choices("fusion", FUSIONS)
        keeps = table.optional("memory")
        memory = MemoryFigures() if keeps is None else MemoryFigures.read(keeps)
        takes = table.optional("contention")
        contention = 0.0 if takes is None else _read_contention(takes)
        table.finish(sourced=False)
        return Profile(
            name, device, compute, dispatch, links, fusion, ops, memory, contention
        )


def _read_contention(table: Table) -> float:
    """
    Reads the share of a device that collectives take, from the table `contention`. Raises
    DistIRError.
    """
    share = table.below_1("share")
    table.finish()
    return share
