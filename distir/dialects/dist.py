"""
The `dist` dialect: the layouts of the tensors of a distributed program.

A distributed value has an ordinary ranked tensor type. Its shape is the *global* shape,
and its encoding is a `#dist.layout`. The attributes of arguments, results, ops,
functions and modules are declared in `dist_attributes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from xdsl.dialects.builtin import (
    ArrayAttr,
    IntAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import (
    Attribute,
    BlockArgument,
    Data,
    Dialect,
    Operation,
    OpResult,
    SSAValue,
)
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from distir.dialects.axis_names import AxisNames, parse_axis
from distir.dialects.dist_attributes import DistAttribute
from distir.dialects.host import HostType

REDUCTIONS = ("sum", "max", "min")


class Shard(NamedTuple):
    """
    One mesh axis that splits a dimension.

    With run length r over an axis of size n, element i of the dimension belongs to the
    shard with coordinate `(i // r) % n`; `run=None` is the contiguous split, r = size/n.
    """

    axis: str
    run: int | None = None


@dataclass(frozen=True)
class Layout:
    """
    The distribution of a tensor over a mesh: the axes that split the tensor, and the
    axes over which each device holds one term of the tensor.

    - `mesh`: symbol of the `device.mesh`.
    - `dims`: for each dimension the axes that split it, major to minor; each axis
      splits the part that the preceding axes leave on a device. If no axis splits the
      tensor, `dims` is the empty tuple, whatever the tensor's rank.
    - `partial`: axes over which the values on the devices are still terms, each with
      the reduction (`sum`, `max`, `min`) that combines them, sorted by axis.

    An axis that is neither in `dims` nor in `partial` replicates the tensor.
    """

    mesh: str
    dims: tuple[tuple[Shard, ...], ...] = ()
    partial: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.dims and not any(self.dims):
            object.__setattr__(self, "dims", ())
        if len(self.partial) > 1:
            object.__setattr__(self, "partial", tuple(sorted(self.partial)))

    @cached_property
    def _hash(self) -> int:
        """The cached hash: searches look up the same layouts millions of times."""
        return hash((self.mesh, self.dims, self.partial))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Layout], tuple[object, ...]]:
        """Pickles without the hash, which differs between processes."""
        return Layout, (self.mesh, self.dims, self.partial)

    def dim(self, index: int) -> tuple[Shard, ...]:
        """Returns the axes that split dimension `index`, major to minor."""
        return self.dims[index] if self.dims else ()

    def full_dims(self, rank: int) -> tuple[tuple[Shard, ...], ...]:
        """Returns `dims` with one entry for each of `rank` dimensions."""
        return self.dims or ((),) * rank

    @property
    def split_axes(self) -> tuple[str, ...]:
        """The axes that split any dimension."""
        return tuple(shard.axis for dim in self.dims for shard in dim)

    @property
    def partial_axes(self) -> tuple[str, ...]:
        """The axes over which the values are partial."""
        return tuple(axis for axis, _ in self.partial)

    def with_dim(self, index: int, shards: Sequence[Shard], rank: int) -> Layout:
        """
        Returns this layout with `shards` as the axes of dimension `index`, for a tensor
        with `rank` dimensions.
        """
        dims = list(self.full_dims(rank))
        dims[index] = tuple(shards)
        # Like `replace`, which is slow.
        return Layout(self.mesh, tuple(dims), self.partial)

    def without_partial(self, axes: Sequence[str]) -> Layout:
        """
        Returns this layout without the partial axes `axes`: the layout after their
        reduction.
        """
        kept = tuple(p for p in self.partial if p[0] not in axes)
        return Layout(self.mesh, self.dims, kept)

    def __str__(self) -> str:
        text = f"<@{self.mesh}"
        if self.dims:
            dims = (
                "{" + ", ".join(_shard_text(s) for s in dim) + "}" for dim in self.dims
            )
            text += f", [{', '.join(dims)}]"
        by_reduction: dict[str, list[str]] = {}
        for axis, reduction in self.partial:
            by_reduction.setdefault(reduction, []).append(axis)
        for reduction in REDUCTIONS:
            if reduction in by_reduction:
                text += (
                    f", partial {reduction} {{{', '.join(by_reduction[reduction])}}}"
                )
        return text + ">"


def _shard_text(shard: Shard) -> str:
    return shard.axis if shard.run is None else f"{shard.axis}:{shard.run}"


@irdl_attr_definition
class LayoutAttr(Data[Layout]):
    """
    The encoding of a distributed tensor type, a `Layout`: `#dist.layout<@mesh, [{d},
    {t:64}, {}], partial sum {c}>`.
    """

    name = "dist.layout"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Layout:
        def shard() -> Shard:
            axis = parse_axis(parser)
            if parser.parse_optional_punctuation(":") is None:
                return Shard(axis)
            run = parser.parse_integer(allow_negative=False)
            if run == 0:
                parser.raise_error("a run length must be positive")
            return Shard(axis, run)

        def dim() -> tuple[Shard, ...]:
            return tuple(
                parser.parse_comma_separated_list(parser.Delimiter.BRACES, shard)
            )

        with parser.in_angle_brackets():
            mesh = parser.parse_symbol_name().data
            dims: tuple[tuple[Shard, ...], ...] = ()
            partial: list[tuple[str, str]] = []
            while parser.parse_optional_punctuation(",") is not None:
                if parser.parse_optional_keyword("partial") is not None:
                    reduction = parser.parse_keyword_in(REDUCTIONS)
                    partial += [
                        (axis, reduction)
                        for axis in parser.parse_comma_separated_list(
                            parser.Delimiter.BRACES, lambda: parse_axis(parser)
                        )
                    ]
                else:
                    dims = tuple(
                        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, dim)
                    )
            layout = Layout(mesh, dims, tuple(partial))
        axes = [*layout.split_axes, *layout.partial_axes]
        if len(set(axes)) != len(axes):
            parser.raise_error(f"layout {layout} uses an axis twice")
        return layout

    def print_parameter(self, printer: Printer) -> None:
        text = str(self.data)
        symbol = f"@{self.data.mesh}"
        printer.print_string("<")
        printer.print_symbol_name(self.data.mesh)
        printer.print_string(text[1 + len(symbol) :])

    def verify(self) -> None:
        axes = [*self.data.split_axes, *self.data.partial_axes]
        if len(set(axes)) != len(axes):
            raise VerifyException(f"layout {self.data} uses an axis twice")


class OneLayout(DistAttribute):
    """An attribute whose value is a layout."""

    FORM = "a layout (NAME = #dist.layout<...>)"
    CLASSES = (LayoutAttr,)


class Layouts(DistAttribute):
    """An attribute whose value is a list of layouts."""

    FORM = "a list of layouts (NAME = [#dist.layout<...>])"
    CLASSES = (ArrayAttr,)
    ELEMENTS = (LayoutAttr,)


LAYOUT = OneLayout(
    "dist.layout",
    "Of an argument of a sequential program: the layout that is asked for",
)

OPERAND_LAYOUTS = Layouts(
    "dist.operand_layouts",
    "Of an op of an annotated sequential program: the layouts of its operands",
)

RESULT_LAYOUTS = Layouts(
    "dist.result_layouts",
    "Of an op of an annotated sequential program: the layouts of its results",
)


def layout_of(value: SSAValue | Attribute) -> Layout | None:
    """
    Returns the layout of a distributed value or type, or None if the value or type has
    no layout.
    """
    # This runs very often, and `isinstance` is slow if it returns False.
    # Values have one of two classes, and the class of tensor types is final.
    type_ = value
    if type(value) is OpResult or type(value) is BlockArgument:
        type_ = value.type
    if type(type_) is not TensorType:
        return None
    encoding = type_.encoding
    return encoding.data if type(encoding) is LayoutAttr else None


def with_layout(type_: TensorType[Any], layout: Layout) -> TensorType[Any]:
    """
    Returns the tensor type `type_` with `layout` in place of its own layout. The
    function caches its results, so equal types are usually one object, which makes
    look-ups by type fast.
    """
    return _tensor_type(type_.element_type, type_.shape, layout)


@lru_cache(maxsize=1 << 14)
def _tensor_type(
    element_type: Attribute, shape: ArrayAttr[IntAttr], layout: Layout
) -> TensorType[Any]:
    return TensorType(element_type, shape, layout_attr(layout))


@lru_cache(maxsize=1 << 12)
def layout_attr(layout: Layout) -> LayoutAttr:
    """Returns `layout` as an attribute. Attributes are cached, because making one is slow."""
    return LayoutAttr(layout)


def _verify_same_tensor(
    op: IRDLOperation, source: Attribute, target: Attribute
) -> None:
    if not isinstance(source, TensorType) or not isinstance(target, TensorType):
        raise VerifyException(f"{op.name} works on ranked tensors")
    if source.shape != target.shape or source.element_type != target.element_type:
        raise VerifyException(
            f"{op.name} keeps the global shape and element type, but turns {source} "
            f"into {target}"
        )


class _LayoutChange(IRDLOperation):
    """
    Base of `dist.reshard` and `dist.send`, which change the layout of a tensor but not
    its values.
    """

    def _layouts(self) -> tuple[Layout, Layout]:
        source, target = self.operands[0].type, self.results[0].type
        _verify_same_tensor(self, source, target)
        before, after = layout_of(source), layout_of(target)
        if before is None or after is None:
            raise VerifyException(f"{self.name} needs a #dist.layout on both sides")
        return before, after


@irdl_op_definition
class ReshardOp(_LayoutChange):
    """
    An abstract change of layout. `lower-reshard` expands it to the cheapest chain of
    collectives and sends.

    `rows` is empty unless the operand holds the rows of experts. It then consists of
    two tensors that give each row's expert, or -1 for an empty row; the first tensor is
    split like the operand, the second like the result. An all-to-all then sends no
    empty rows. `taken` is the number of rows of a group, over all shards, that are not
    empty.
    """

    name = "dist.reshard"

    source = operand_def(TensorType)
    rows = var_operand_def(TensorType)
    taken = opt_prop_def(IntegerAttr.constr(i64))
    result = result_def(TensorType)

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = (
        "$source (`of` $rows^ `:` type($rows))? attr-dict "
        "`:` type($source) `->` type($result)"
    )

    def __init__(
        self,
        source: SSAValue,
        result_type: Attribute,
        rows: Sequence[SSAValue] = (),
        taken: int | None = None,
    ):
        # Like IRDL's constructor, which is slow.
        properties: dict[str, Attribute] = {}
        if taken is not None:
            properties["taken"] = IntegerAttr(taken, i64)
        Operation.__init__(
            self,
            operands=[source, *rows],
            result_types=[result_type],
            properties=properties,
        )

    def verify_(self) -> None:
        self._layouts()
        if len(self.rows) not in (0, 2) or bool(self.rows) != (self.taken is not None):
            raise VerifyException(
                f"{self.name} of rows of experts needs the experts of the rows before and "
                f"after it, and how many are taken"
            )


@irdl_op_definition
class SendOp(_LayoutChange):
    """
    Moves a value to another mesh. Between meshes with the same axes the layout stays
    the same, and each device sends to the device at the same coordinates.

    If the axes or sizes of the two meshes differ, each device of the target mesh
    receives its part of the result from the devices that hold this part
    (`distir.sharding.sends`). The terms of a partial value are distributed over the
    receivers. Sender and receiver wait until the value has arrived (the DistIR paper,
    section 2.1). With the unit attribute `dist.asynchronous`, both go on, and the
    receiver waits at the first use of the value.
    """

    name = "dist.send"

    source = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, result_type: Attribute):
        super().__init__(operands=[source], result_types=[result_type])

    def verify_(self) -> None:
        before, after = self._layouts()
        if before.mesh == after.mesh:
            raise VerifyException(
                f"dist.send must go to another mesh than @{before.mesh}"
            )


@irdl_op_definition
class ConstrainOp(IRDLOperation):
    """
    A layout that a user or a pass requests for a value of a sequential program.
    `propagate-sharding` obeys the request or fails. With `over`, the request fixes only
    the axes in `over`, and all other axes stay free.
    """

    name = "dist.constrain"

    source = operand_def(TensorType)
    layout = prop_def(LayoutAttr)
    axes = opt_prop_def(ArrayAttr[StringAttr])
    result = result_def(TensorType)

    custom_directives = (AxisNames,)
    assembly_format = (
        "$source `to` $layout (`over` custom<AxisNames>($axes)^)? attr-dict "
        "`:` type($source) `->` type($result)"
    )

    def __init__(
        self, source: SSAValue, layout: Layout, axes: Sequence[str] | None = None
    ):
        properties: dict[str, Attribute] = {"layout": LayoutAttr(layout)}
        if axes is not None:
            properties["axes"] = ArrayAttr([StringAttr(a) for a in axes])
        super().__init__(
            operands=[source], properties=properties, result_types=[source.type]
        )

    def fixes(self, axis: str) -> bool:
        """Whether this request fixes the mesh axis `axis`."""
        return self.axes is None or axis in [a.data for a in self.axes.data]

    def verify_(self) -> None:
        if self.source.type != self.result.type:
            raise VerifyException("dist.constrain keeps the type of its operand")


Dist = Dialect("dist", [ReshardOp, SendOp, ConstrainOp], [LayoutAttr, HostType])
