"""
The `device` dialect: hardware and meshes of devices.

Units are always bytes, bytes per second, seconds, and floating-point operations per
second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import (
    BoolAttr,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Data, Dialect, Region
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_attr_definition,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, NoTerminator, SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import VerifyException

from distir.dialects.axis_names import parse_axis, print_axis

MOST_DEVICES = 1 << 17
"""
The largest allowed number of devices of a cluster. It keeps a typing error from filling
the memory.
"""


@irdl_attr_definition
class AxesAttr(Data[tuple[tuple[str, int], ...]]):
    """
    The named axes of a mesh with their sizes, outermost (slowest varying) first:
    `<d = 2, t = 4>`.
    """

    name = "device.axes"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[str, int], ...]:
        def axis() -> tuple[str, int]:
            axis_name = parse_axis(parser)
            parser.parse_punctuation("=")
            return axis_name, parser.parse_integer(allow_negative=False)

        return tuple(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, axis))

    def print_parameter(self, printer: Printer) -> None:
        def axis(item: tuple[str, int]) -> None:
            print_axis(printer, item[0])
            printer.print_string(f" = {item[1]}")

        with printer.in_angle_brackets():
            printer.print_list(self.data, axis)


@irdl_attr_definition
class DeviceIdsAttr(Data[tuple[int, ...]]):
    """
    An ordered list of at most `MOST_DEVICES` device ids. Ranges are written `first to
    past_the_end` with an optional stride: `[0 to 8]`, `[0 to 16 step 2, 1]`.

    In the text of ops the list stands alone. In the generic form it is written
    `#device.ids<[0 to 8]>`, as MLIR requires.
    """

    name = "device.ids"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[int, ...]:
        if parser.parse_optional_punctuation("<") is None:
            return cls.parse_list(parser)  # as older programs have it
        found = cls.parse_list(parser)
        parser.parse_punctuation(">")
        return found

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            self.print_list(printer)

    @staticmethod
    def parse_list(parser: AttrParser) -> tuple[int, ...]:
        """Parses the list with its brackets."""
        count = 0

        def ids() -> Sequence[int]:
            nonlocal count
            first = parser.parse_integer(allow_negative=False)
            end, step = first + 1, 1
            if parser.parse_optional_keyword("to") is not None:
                end = parser.parse_integer(allow_negative=False)
                if parser.parse_optional_keyword("step") is not None:
                    step = parser.parse_integer(allow_negative=False)
            if step == 0 or end <= first:
                parser.raise_error("a range of devices must contain a device")
            count += (end - first + step - 1) // step
            if count > MOST_DEVICES:
                parser.raise_error(
                    f"these are {count} devices; there may be at most {MOST_DEVICES}"
                )
            return range(first, end, step)

        parts = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, ids)
        return tuple(i for part in parts for i in part)

    def print_list(self, printer: Printer) -> None:
        """Prints the list with its brackets."""
        with printer.in_square_brackets():
            printer.print_string(", ".join(_ranges(self.data)))


@irdl_custom_directive
class DeviceList(CustomDirective):
    """
    The directive that writes a list of device ids in an op's text, such as `[0 to 8]`.
    """

    devices: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.devices.set(state, DeviceIdsAttr(DeviceIdsAttr.parse_list(parser)))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        devices = self.devices.get(op)
        assert isinstance(devices, DeviceIdsAttr)
        state.print_whitespace(printer)
        devices.print_list(printer)


def _ranges(ids: Sequence[int]) -> list[str]:
    """
    Returns the texts of a list of ids: single ids and ranges. A range stands for at
    least three equally spaced ids, or for two consecutive ones.
    """
    parts: list[str] = []
    start = 0
    while start < len(ids):
        end = start + 1
        if end < len(ids) and ids[end] > ids[start]:
            step = ids[end] - ids[start]
            while end < len(ids) and ids[end] - ids[end - 1] == step:
                end += 1
            if end - start >= 3 or (step == 1 and end - start == 2):
                stride = "" if step == 1 else f" step {step}"
                parts.append(f"{ids[start]} to {ids[end - 1] + 1}{stride}")
                start = end
                continue
        parts.append(str(ids[start]))
        start += 1
    return parts


_RATED = re.compile(
    r"default|b?f16|t?f32|f64|float\d+e\d+m\d+\w*|[su]?i[1-9]\d*|complex<f\d+>|mxfp8|nvfp4"
)
"""
Matches the element types and the recipes of products in blocks (`mxfp8`, `nvfp4`) that
a device may have a rate for, and `default`.
"""


def _positive(value: FloatAttr | IntegerAttr, what: str, owner: str) -> None:
    if not value.value.data > 0:  # refuses NaN too
        raise VerifyException(f"{owner}: {what} must be positive")


@irdl_op_definition
class KindOp(IRDLOperation):
    """
    A kind of device, and the devices of the cluster that are of this kind.

    - `memory`: usable bytes; `memory_bandwidth`: bytes/s.
    - `peak_flops`: FLOP/s per element type, e.g. `{f16 = 1.25e14 : f64}`. The entry
      `default` is used for types that are not listed. `mxfp8` and `nvfp4` are products
      of narrow floats with scales for blocks.
    - `launch_latency`: seconds from issuing an op to its start.
    - `profile`: name of a calibration profile, if one exists.
    - `allocation_block`: memory is allocated in multiples of this number of bytes, e.g.
      512 for PyTorch's allocator on CUDA; 1 if absent.
    - `library_memory`: bytes that libraries always occupy on the device (contexts,
      workspaces of matrix products); `communicator_memory`: bytes for each group of
      devices that the device communicates with (NCCL's buffers). 0 if absent.
    - `host_bandwidth`: bytes/s in each direction between the device and the memory of
      its host, for offloaded values; `host_memory`: the device's share of the host's
      memory in bytes.
    """

    name = "device.kind"

    sym_name = prop_def(SymbolNameConstraint())
    devices = prop_def(DeviceIdsAttr)
    memory = prop_def(IntegerAttr)
    memory_bandwidth = prop_def(FloatAttr)
    peak_flops = prop_def(DictionaryAttr)
    launch_latency = prop_def(FloatAttr)
    profile = opt_prop_def(StringAttr)
    allocation_block = opt_prop_def(IntegerAttr)
    library_memory = opt_prop_def(IntegerAttr)
    communicator_memory = opt_prop_def(IntegerAttr)
    host_bandwidth = opt_prop_def(FloatAttr)
    host_memory = opt_prop_def(IntegerAttr)

    traits = lazy_traits_def(lambda: (SymbolOpInterface(), HasParent(ClusterOp)))
    assembly_format = "$sym_name `on` custom<DeviceList>($devices) attr-dict"
    custom_directives = (DeviceList,)
    irdl_options = (ParsePropInAttrDict(),)

    def __init__(
        self,
        name: str,
        devices: Sequence[int],
        *,
        memory: int,
        memory_bandwidth: float,
        peak_flops: dict[str, float],
        launch_latency: float = 0.0,
        profile: str | None = None,
        allocation_block: int | None = None,
        library_memory: int | None = None,
        communicator_memory: int | None = None,
        host_bandwidth: float | None = None,
        host_memory: int | None = None,
    ):
        optional = {
            "allocation_block": allocation_block,
            "library_memory": library_memory,
            "communicator_memory": communicator_memory,
            "host_memory": host_memory,
        }
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "devices": DeviceIdsAttr(tuple(devices)),
                "memory": IntegerAttr(memory, 64),
                "memory_bandwidth": FloatAttr(memory_bandwidth, 64),
                "peak_flops": DictionaryAttr(
                    {k: FloatAttr(v, 64) for k, v in peak_flops.items()}
                ),
                "launch_latency": FloatAttr(launch_latency, 64),
                **({} if profile is None else {"profile": StringAttr(profile)}),
                **{
                    name: IntegerAttr(value, 64)
                    for name, value in optional.items()
                    if value is not None
                },
                **(
                    {}
                    if host_bandwidth is None
                    else {"host_bandwidth": FloatAttr(host_bandwidth, 64)}
                ),
            }
        )

    def verify_(self) -> None:
        owner = f"device kind @{self.sym_name.data}"
        _positive(self.memory, "memory", owner)
        _positive(self.memory_bandwidth, "memory_bandwidth", owner)
        if not self.launch_latency.value.data >= 0:
            raise VerifyException(f"{owner}: launch_latency must not be negative")
        if self.host_bandwidth is not None:
            _positive(self.host_bandwidth, "host_bandwidth", owner)
        if self.host_memory is not None:
            _positive(self.host_memory, "host_memory", owner)
        if self.allocation_block is not None:
            _positive(self.allocation_block, "allocation_block", owner)
        for what in ("library_memory", "communicator_memory"):
            value = self.properties.get(what)
            if isinstance(value, IntegerAttr) and value.value.data < 0:
                raise VerifyException(f"{owner}: {what} must not be negative")
        if not self.peak_flops.data:
            raise VerifyException(f"{owner}: peak_flops names no element type")
        for dtype, flops in self.peak_flops.data.items():
            if not _RATED.fullmatch(dtype):
                raise VerifyException(
                    f"{owner}: peak_flops names {dtype!r}, which is no element type; "
                    "write one such as f16, bf16, f32, f64, i8, or `default`"
                )
            if not isinstance(flops, FloatAttr):
                raise VerifyException(f"{owner}: peak_flops of {dtype} must be a float")
            _positive(flops, f"peak_flops of {dtype}", owner)

    def peak(self, dtype: str) -> float:
        """
        Returns the FLOP/s for an element type such as `f16`, or the entry `default` if
        the type is not listed. Raises VerifyException if there is neither.
        """
        rates = self.peak_flops.data
        rate = rates.get(dtype, rates.get("default"))
        if not isinstance(rate, FloatAttr):
            raise VerifyException(
                f"device kind @{self.sym_name.data} gives no peak_flops for {dtype}; "
                f"add it, or a `default`"
            )
        return rate.value.data


@irdl_op_definition
class LinkOp(IRDLOperation):
    """
    One level of links. A cluster lists its levels innermost first. Consecutive groups
    of `spans` devices reach each other through the level. `spans` is a multiple of the
    `spans` of the next inner level.

    - `bandwidth`: bytes/s per device and direction; `latency`: seconds per message.
    - `block_bandwidth`: bytes/s per direction that all devices of one group of the next
      inner level share, such as the network adapters of a node. If absent, devices
      share nothing.
    - `in_fabric_reduction`: whether the switch can add values while it forwards them.
    - `kind`: the kind of link, such as `nvlink`, `infiniband` or `ethernet`, by which a
      profile lists the performance of links; by default the link's name.
    """

    name = "device.link"

    sym_name = prop_def(SymbolNameConstraint())
    spans = prop_def(IntegerAttr.constr(i64))
    bandwidth = prop_def(FloatAttr)
    latency = prop_def(FloatAttr)
    block_bandwidth = opt_prop_def(FloatAttr)
    in_fabric_reduction = opt_prop_def(BoolAttr)
    kind = opt_prop_def(StringAttr)

    traits = lazy_traits_def(lambda: (SymbolOpInterface(), HasParent(ClusterOp)))
    assembly_format = "$sym_name `spans` $spans attr-dict"
    irdl_options = (ParsePropInAttrDict(),)

    def __init__(
        self,
        name: str,
        spans: int,
        *,
        bandwidth: float,
        latency: float,
        in_fabric_reduction: bool = False,
        block_bandwidth: float | None = None,
        kind: str | None = None,
    ):
        properties: dict[str, Attribute] = {
            "sym_name": StringAttr(name),
            "spans": IntegerAttr(spans, 64),
            "bandwidth": FloatAttr(bandwidth, 64),
            "latency": FloatAttr(latency, 64),
        }
        if block_bandwidth is not None:
            properties["block_bandwidth"] = FloatAttr(block_bandwidth, 64)
        if in_fabric_reduction:
            properties["in_fabric_reduction"] = BoolAttr.from_bool(True)
        if kind is not None:
            properties["kind"] = StringAttr(kind)
        super().__init__(properties=properties)

    @property
    def kind_name(self) -> str:
        """The kind of link, such as `infiniband`; by default the link's name."""
        return (self.sym_name if self.kind is None else self.kind).data

    def verify_(self) -> None:
        owner = f"device link @{self.sym_name.data}"
        _positive(self.spans, "the number of devices it spans", owner)
        _positive(self.bandwidth, "bandwidth", owner)
        if self.block_bandwidth is not None:
            _positive(self.block_bandwidth, "block_bandwidth", owner)
        if not self.latency.value.data >= 0:
            raise VerifyException(f"{owner}: latency must not be negative")


@irdl_op_definition
class RouteOp(IRDLOperation):
    """
    Links between two sets of devices, if these links differ from the other links of
    their level, such as one slow cable: `device.route @cable between [0 to 4] and [4 to
    8] {bandwidth = ..., latency = ...}`.

    - `bandwidth`: bytes/s per device and direction; `latency`: seconds per message.
    """

    name = "device.route"

    sym_name = prop_def(SymbolNameConstraint())
    first = prop_def(DeviceIdsAttr)
    second = prop_def(DeviceIdsAttr)
    bandwidth = prop_def(FloatAttr)
    latency = prop_def(FloatAttr)

    traits = lazy_traits_def(lambda: (SymbolOpInterface(), HasParent(ClusterOp)))
    assembly_format = (
        "$sym_name `between` custom<DeviceList>($first) `and` "
        "custom<DeviceList>($second) attr-dict"
    )
    custom_directives = (DeviceList,)
    irdl_options = (ParsePropInAttrDict(),)

    def __init__(
        self,
        name: str,
        first: Sequence[int],
        second: Sequence[int],
        *,
        bandwidth: float,
        latency: float,
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "first": DeviceIdsAttr(tuple(first)),
                "second": DeviceIdsAttr(tuple(second)),
                "bandwidth": FloatAttr(bandwidth, 64),
                "latency": FloatAttr(latency, 64),
            }
        )

    def verify_(self) -> None:
        owner = f"device route @{self.sym_name.data}"
        _positive(self.bandwidth, "bandwidth", owner)
        if not self.latency.value.data >= 0:
            raise VerifyException(f"{owner}: latency must not be negative")
        if not self.first.data or not self.second.data:
            raise VerifyException(f"{owner} needs devices on both sides")
        both = set(self.first.data) & set(self.second.data)
        if both:
            raise VerifyException(f"{owner}: device {min(both)} is on both sides")


@irdl_op_definition
class ClusterOp(IRDLOperation):
    """
    A cluster: first its kinds of devices, then its levels of links (innermost first),
    then routes, which are links that differ from the other links of their level.
    Devices are numbered from 0, and each one belongs to exactly one kind.

    ```mlir
    device.cluster @pair {
      device.kind @V100 on [0 to 2] {memory = 32000000000 : i64, ...}
      device.link @nvlink spans 2 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
    }
    ```
    """

    name = "device.cluster"

    sym_name = prop_def(SymbolNameConstraint())
    body = region_def("single_block")

    traits = traits_def(SymbolOpInterface(), SymbolTable(), NoTerminator())
    assembly_format = "$sym_name $body attr-dict"

    def __init__(
        self,
        name: str,
        kinds: Sequence[KindOp],
        links: Sequence[LinkOp],
        routes: Sequence[RouteOp] = (),
    ):
        super().__init__(
            properties={"sym_name": StringAttr(name)},
            regions=[Region(Block([*kinds, *links, *routes]))],
        )

    @property
    def kinds(self) -> list[KindOp]:
        return [op for op in self.body.block.ops if isinstance(op, KindOp)]

    @property
    def links(self) -> list[LinkOp]:
        """The levels of links, innermost first."""
        return [op for op in self.body.block.ops if isinstance(op, LinkOp)]

    @property
    def routes(self) -> list[RouteOp]:
        """The routes: links that differ from the other links of their level."""
        return [op for op in self.body.block.ops if isinstance(op, RouteOp)]

    @property
    def size(self) -> int:
        """The number of devices in the cluster."""
        return sum(len(kind.devices.data) for kind in self.kinds)

    def verify_(self) -> None:
        owner = f"cluster @{self.sym_name.data}"
        for op in self.body.block.ops:
            if not isinstance(op, KindOp | LinkOp | RouteOp):
                raise VerifyException(
                    f"{owner} may hold only device.kind, device.link and device.route, "
                    f"not {op.name}"
                )
        if not self.kinds:
            raise VerifyException(f"{owner} has no device.kind")
        ids = sorted(i for kind in self.kinds for i in kind.devices.data)
        if ids != list(range(len(ids))):
            raise VerifyException(
                f"{owner}: its kinds must name each of the devices 0 to "
                f"{len(ids) - 1} exactly once"
            )
        spans = 1
        for link in self.links:
            if link.spans.value.data % spans:
                raise VerifyException(
                    f"{owner}: link @{link.sym_name.data} spans "
                    f"{link.spans.value.data} devices, not a multiple of the "
                    f"{spans} of the level inside it"
                )
            spans = link.spans.value.data
        for route in self.routes:
            last = max(*route.first.data, *route.second.data)
            if last >= len(ids):
                raise VerifyException(
                    f"{owner}: route @{route.sym_name.data} names device {last}, but there "
                    f"are {len(ids)} devices"
                )
        if len(ids) > 1 and spans < len(ids):
            raise VerifyException(
                f"{owner}: no link connects all of its {len(ids)} devices"
            )


@irdl_op_definition
class MeshOp(IRDLOperation):
    """
    Named axes over an ordered list of devices of a cluster. The last axis varies
    fastest. A single device is a mesh without axes.

    ```mlir
    device.mesh @stage0 on @pair <d = 2, t = 4> [0 to 8]
    device.mesh @D1 on @pair <> [0]
    ```
    """

    name = "device.mesh"

    sym_name = prop_def(SymbolNameConstraint())
    cluster = prop_def(FlatSymbolRefAttrConstr)
    axes = prop_def(AxesAttr)
    devices = prop_def(DeviceIdsAttr)

    traits = traits_def(SymbolOpInterface())
    assembly_format = (
        "$sym_name `on` $cluster $axes custom<DeviceList>($devices) attr-dict"
    )
    custom_directives = (DeviceList,)

    def __init__(
        self,
        name: str,
        cluster: str,
        axes: Sequence[tuple[str, int]],
        devices: Sequence[int],
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "cluster": SymbolRefAttr(cluster),
                "axes": AxesAttr(tuple(axes)),
                "devices": DeviceIdsAttr(tuple(devices)),
            }
        )

    def verify_(self) -> None:
        owner = f"mesh @{self.sym_name.data}"
        names = [name for name, _ in self.axes.data]
        if len(set(names)) != len(names):
            raise VerifyException(f"{owner}: an axis is named twice")
        for name, size in self.axes.data:
            if size < 1 or not name.isidentifier():
                raise VerifyException(
                    f"{owner}: axis {name!r} of size {size} is not an identifier with "
                    f"a positive size"
                )
        devices = self.devices.data
        if len(set(devices)) != len(devices):
            raise VerifyException(f"{owner}: a device is listed twice")
        if prod(size for _, size in self.axes.data) != len(devices):
            axes = " x ".join(f"{n}={s}" for n, s in self.axes.data) or "no axes"
            raise VerifyException(
                f"{owner}: its axes ({axes}) do not cover its {len(devices)} devices"
            )
        cluster = SymbolTable.lookup_symbol(self, self.cluster)
        if cluster is None:
            return  # a mesh may be written down before its cluster is known
        if not isinstance(cluster, ClusterOp):
            raise VerifyException(
                f"{owner}: @{self.cluster.string_value()} is not a cluster"
            )
        if devices and max(devices) >= cluster.size:
            raise VerifyException(
                f"{owner}: device {max(devices)} does not exist; cluster "
                f"@{cluster.sym_name.data} has {cluster.size} devices"
            )


Device = Dialect(
    "device", [KindOp, LinkOp, RouteOp, ClusterOp, MeshOp], [AxesAttr, DeviceIdsAttr]
)
