"""
Profiles: the performance of a kind of device and its links in practice. Profiles
complement the figures of data sheets.

A `Profile` is a JSON file (`docs/reference/profiles.md` has the format). A profile
gives the efficiency of large and small ops on a device, the time in which the host
issues an op, and the overheads of messages. These figures are few and physical, so the
figures also hold for shapes that nobody measured. Without a profile, the simulator uses
the data sheet alone.
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
The classes of ops. Each is mapped to the class whose curve is used if a profile lacks
its own, or to None.
"""

SMALLEST_TILE = 16
"""
The number of rows and of columns of the smallest tile. It is the tile of a tensor
core's instruction.
"""

ALIGNMENT = 8
"""
The number of elements that kernels of matrix products load at once: 16 bytes of 16-bit
floats.
"""

SPLITS = (1, 2, 3, 4, 6, 8)
"""The numbers of parts into which a kernel may split each sum of a matrix product."""


def _served_by(op_class: str) -> list[str]:
    """
    Returns `op_class`, followed by the classes whose curves are used if a profile has
    no curve for `op_class`, in order of preference.
    """
    found: list[str] = []
    wanted: str | None = op_class
    while wanted is not None:
        found.append(wanted)
        wanted = OP_CLASSES[wanted]
    return found


DEFAULT = "default"
"""The key of the curves for element types that a profile does not list."""


@dataclass(frozen=True)
class Curve:
    """
    The time of an op of one class on the device: `overhead` seconds, plus the longer of
    two times. The first is the time to move the op's bytes at `bandwidth`, a fraction
    of the memory's bandwidth. The second is the time to compute.

    A product of an m x k matrix and a k x n matrix is computed in tiles of `tile`
    elements. `units` parts of the device compute tiles at the same time, at
    `efficiency`, a fraction of the peak. Each element of a tile takes the time of `k +
    depth` multiplications. A tile that is not full costs as much as a full tile, and a
    last round of fewer than `units` tiles as much as a full round. Where it is faster,
    kernels use more units by splitting the sums over k into parts, which they add up in
    memory. If the length of a row of a matrix or of the result is not a multiple of
    `ALIGNMENT` elements, kernels load single elements, and reach only the fraction
    `misaligned` of the efficiency.
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
        Returns the seconds of an op that only moves `moved` bytes through a memory of
        bandwidth `bandwidth`.
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
        Returns the seconds of an op that does `flops` operations and moves `moved`
        bytes, on a device with `peak` FLOP/s and a memory of bandwidth `bandwidth`.
        `product` describes the op as a product of matrices, or is None if the op is not
        such a product.
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
        Reads a curve from a profile's table. A class of ops that does not compute
        (`computes` is False) is bound by memory, and has fewer fields. Raises
        DistIRError for a missing or wrong field.
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
    The seconds in which the host issues an op (`op`) or a collective (`collective`),
    while the device works on earlier ones. If the host does not run `ahead`, it issues
    an op only at the end of the previous op. Then each op takes at least `op` seconds,
    and each collective takes `collective` seconds longer, because its devices wait for
    the slowest of their hosts.
    """

    op: float = 0.0
    collective: float = 0.0
    ahead: bool = True

    @staticmethod
    def read(table: Table) -> Dispatch:
        """
        Reads the times of the host from a profile's table `dispatch`. Raises
        DistIRError for a missing or wrong field.
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
    The performance of a level of links in practice.

    - `bandwidth`: the fraction of the data sheet's bandwidth that large messages get;
      it can depend on the number of devices, if rings of different sizes get different
      numbers of links;
    - `overhead`: the seconds added to each collective; `latency`: the seconds of each
      message;
    - `copy_bandwidth`: bytes/s at which a device adds up or copies data in its memory
      (infinite: at no cost);
    - `shared`: whether the devices of a block, such as a node, pass on to each other
      the data that one of them received over this level; if not, each device receives
      all data over its own adapter;
    - `occupies`: whether an asynchronous send keeps its sender busy, as in software
      that waits for the send immediately;
    - `kinds`: figures for single kinds of communication (`all_reduce`, `send`, ...),
      for libraries in which the kinds of communication are not equally efficient.
    """

    bandwidth: float | Mapping[int, float]
    overhead: float = 0.0
    latency: float = 0.0
    copy_bandwidth: float = math.inf
    shared: bool = True
    occupies: bool = False
    kinds: Mapping[str, LinkFigures] = field(default_factory=dict[str, "LinkFigures"])

    def of_kind(self, kind: str) -> LinkFigures:
        """
        Returns the figures for a kind of communication, or this object if the kind has
        no special figures.
        """
        return self.kinds.get(kind, self)

    def share(self, devices: int) -> float:
        """
        Returns the fraction of the bandwidth that a group of `devices` devices gets.
        """
        if not isinstance(self.bandwidth, Mapping):
            return self.bandwidth
        known = [size for size in self.bandwidth if size <= devices]
        return self.bandwidth[max(known, default=min(self.bandwidth))]

    @staticmethod
    def read(table: Table) -> LinkFigures:
        """
        Reads the figures of one level of links from a profile. Raises DistIRError for a
        missing or wrong field.
        """
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
    The memory of a device that software takes in addition to the values of the program.

    - `fragments`: the free memory that the allocator cannot use again, as a fraction of
      the memory that is allocated and freed within a step;
    - `block`: memory is allocated in multiples of this number of bytes;
    - `libraries`: the bytes that libraries take in every program (contexts, workspaces
      of matrix products); `communicator`: the bytes for each group of devices that a
      device communicates with;
    - `logit`: the bytes of 32-bit copies per 16-bit logit, in a loss or its gradient;
      if None, the copies are those of generated packages, which compute losses of a
      part of the logits at a time;
    - `fsdp`: whether gathered parameters are kept as PyTorch's FSDP keeps them
      (`distir.interpreters.simulator.engine.pytorch`);
    - `ddp`: whether gradients are reduced in buckets as in PyTorch's DDP
      (`distir.interpreters.simulator.engine.pytorch`);
    - `foreach`: whether optimizers update all parameters at once, as those of PyTorch
      do (`distir.interpreters.simulator.engine.pytorch`).
    """

    fragments: float = 0.0
    block: int = 1
    libraries: int = 0
    communicator: int = 0
    logit: float | None = None
    fsdp: bool = False
    ddp: bool = False
    foreach: bool = False

    @staticmethod
    def read(table: Table) -> MemoryFigures:
        """
        Reads the memory figures from a profile's table. Raises DistIRError for a wrong
        field.
        """
        figures = MemoryFigures(
            table.at_least_0("fragments", 0.0),
            table.size("block", 1),
            int(table.at_least_0("libraries", 0.0)),
            int(table.at_least_0("communicator", 0.0)),
            table.at_least_0("logit") if table.has("logit") else None,
            table.flag("fsdp", False),
            table.flag("ddp", False),
            table.flag("foreach", False),
        )
        table.finish()
        return figures


@dataclass(frozen=True)
class WrittenOut:
    """
    An op that the software writes out as several elementwise kernels: their number
    (`kernels`), and the bytes that they move together, as a multiple of the bytes that
    the op reads and writes (`moved`).
    """

    kernels: int
    moved: float

    @staticmethod
    def read(table: Table) -> WrittenOut:
        """
        Reads the kernels of one op from a profile's table. Raises DistIRError for a
        missing or wrong field.
        """
        found = WrittenOut(table.size("kernels", 1), table.positive("moved"))
        table.finish()
        return found


@dataclass(frozen=True)
class Profile:
    """
    The figures of one kind of device.

    - `device`: the name of the kind of device in a cluster;
    - `compute`: the curves, by element type (`default` is for types that are not
      listed) and by class of ops;
    - `links`: the figures of links, by the kind of a `device.link`;
    - `fusion`: the fusions of the software (see
      `distir.interpreters.simulator.fusion`);
    - `ops`: the figures of ops that were measured one by one, by element type;
    - `written_out`: the ops, by name, that the software writes out as several kernels;
      `rotary` stands for rotary positions;
    - `memory`: the memory that the software takes in addition to values;
    - `contention`: the share of a device's speed that a computation loses to an
      asynchronous collective at the same time.
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
    written_out: Mapping[str, WrittenOut] = field(default_factory=dict[str, WrittenOut])

    def curve(self, element_type: str, op_class: str) -> Curve:
        """
        Returns the curve of a class of ops on an element type. Raises DistIRError if
        the profile has no curve that applies.
        """
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

    @cached_property
    def unknown_link(self) -> LinkFigures:
        """
        The figures of links of a kind that is not in the profile. Messages reach the
        full bandwidth. The overheads of the software (of a collective, of copies in
        memory, and of sends that are waited for) are the largest among the profile's
        links.
        """
        known = self.links.values()
        return LinkFigures(
            1.0,
            max((figures.overhead for figures in known), default=0.0),
            0.0,
            min((figures.copy_bandwidth for figures in known), default=math.inf),
            occupies=any(figures.occupies for figures in known),
        )

    @staticmethod
    def parse(name: str, data: Any) -> Profile:
        """
        Returns the profile `name` from `data`, the data of its JSON file. Raises
        DistIRError for a missing or wrong field.
        """
        table = Table(f"profile {name}", data)
        table.text("description")
        for words in ("fitted_to", "compared_with"):
            if table.has(words):
                table.text(words)
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
        written_out = {
            op: WrittenOut.read(kernels)
            for op, kernels in table.tables("written_out", required=False).items()
        }
        table.finish(sourced=False)
        return Profile(
            name=name,
            device=device,
            compute=compute,
            dispatch=dispatch,
            links=links,
            fusion=fusion,
            ops=ops,
            memory=memory,
            contention=contention,
            written_out=written_out,
        )


def _read_contention(table: Table) -> float:
    """
    Returns the share of a device's speed that computations lose to collectives, from a
    profile's table `contention`. Raises DistIRError for a missing or wrong field.
    """
    share = table.below_1("share")
    table.finish()
    return share
