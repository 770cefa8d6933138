"""
Requests that users make before a search: splits of arguments, and arguments kept whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist import (
    LAYOUT,
    ConstrainOp,
    Layout,
    LayoutAttr,
    Shard,
    layout_of,
)
from distir.dialects.dist_attributes import FIXED, FIXED_BY
from distir.dialects.kernel import KernelCallOp
from distir.dialects.tensors import rank_of, shape_of
from distir.errors import DistIRError, did_you_mean, listed
from distir.options import same_option
from distir.planning.annotations import fixed_axes, origin_of, requested_layout
from distir.planning.distribution.options import DistributionOptions
from distir.program import (
    Program,
    argument_attributes,
    argument_names,
    describe,
    entry_function,
    functions,
    set_argument_attributes,
    walk_functions,
)
from distir.program.repacking import Repacked, repacked_of
from distir.sharding.kernel_rule import parse_rule
from distir.sharding.layout import canonical, check_layout
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import SplitPlacement, placement_in

_REQUEST = re.compile(r"(?P<name>.+):(?P<dim>\d+)=(?P<axis>\w+)(:(?P<run>\d+))?")


@dataclass(frozen=True)
class Requests:
    """
    The requests that every plan of a search keeps.

    - `shard`: layouts that arguments must have, each `NAME:DIM=AXIS[:RUN]`;
    - `whole`: names of arguments that must not be split; a name may hold `*`;
    - `seconds`: time limit of the solver for the layouts of one plan; if None, the
      search chooses this limit;
    - `limit`: seconds after which the search for the layouts of one plan ends with the
      best layouts so far.
    """

    shard: tuple[str, ...] = same_option(DistributionOptions, "shard")
    whole: tuple[str, ...] = same_option(DistributionOptions, "whole")
    seconds: float | None = None
    limit: float | None = None

    @property
    def axes(self) -> frozenset[str]:
        """
        The axes that the requests in `shard` name. Raises DistIRError for a malformed
        request.
        """
        return frozenset(_read_split(text).shard.axis for text in self.shard)

    def check(self, module: ModuleOp, axes: Collection[str]) -> None:
        """
        Raises DistIRError for requests that no plan can keep: requests for arguments
        that the program lacks, for splits over an axis that is not in `axes`, or for an
        argument that is both split and kept whole.
        """
        function = entry_function(module)
        names = argument_names(function)
        whole = set(_arguments(names, self.whole))
        for i, _, shard in requested_splits(function, self.shard):
            if shard.axis not in axes:
                raise DistIRError(
                    f"{names[i]!r} is to be split over {shard.axis!r}; choose an axis of "
                    f"{', '.join(axes)}"
                )
            if i in whole:
                raise DistIRError(
                    f"{names[i]!r} is to be split and to be kept whole; ask for one of these"
                )


def request(
    function: FuncOp,
    index: int,
    asked: Layout,
    axes: Iterable[str],
    origin: str,
) -> None:
    """
    Requests that the axes `axes` split argument `index` of a function in the same way
    as in the layout `asked`. All other axes stay free. `origin` names the source of the
    request, for error messages. Raises DistIRError if an earlier request or plan splits
    the argument differently over one of `axes`.
    """
    request_each(function, {index: asked}, axes, origin)


def request_each(
    function: FuncOp, asked: Mapping[int, Layout], axes: Iterable[str], origin: str
) -> None:
    """
    Calls `request` for several arguments. `asked` maps the index of each argument to
    the layout that is requested for it.
    """
    attributes, names = argument_attributes(function), argument_names(function)
    types, axes = function.function_type.inputs.data, tuple(axes)
    for index, layout in asked.items():
        what = f"argument {names[index]!r}"
        _request(attributes[index], layout, axes, rank_of(types[index]), what, origin)
    set_argument_attributes(function, attributes)


def _request(
    entry: dict[str, Attribute],
    asked: Layout,
    axes: Iterable[str],
    rank: int,
    what: str,
    origin: str,
) -> None:
    """
    Adds a request to `entry`, the attributes of an argument with `rank` dimensions.
    `what` names the argument in messages.
    """
    layout = requested_layout(entry) or Layout(asked.mesh)
    fixed = dict.fromkeys(fixed_axes(entry))
    origins = {axis: origin_of(entry, axis) for axis in fixed}
    for axis in axes:
        old, new = _splits(layout, axis, rank), _splits(asked, axis, rank)
        if (axis in fixed or old) and old != new:
            raise DistIRError(
                f"{what}: {origin} asks that axis {axis!r} {_does(new)}, but "
                f"{origin_of(entry, axis)} that it {_does(old)}; ask for one of these"
            )
        for dim, shard in new:
            if not old:
                layout = layout.with_dim(dim, (*layout.dim(dim), shard), rank)
        if axis not in fixed:
            fixed[axis], origins[axis] = None, origin
    entry[LAYOUT] = LayoutAttr(layout)
    entry[FIXED] = ArrayAttr([StringAttr(axis) for axis in fixed])
    entry[FIXED_BY] = DictionaryAttr({a: StringAttr(o) for a, o in origins.items()})


def _splits(layout: Layout, axis: str, rank: int) -> list[tuple[int, Shard]]:
    """
    Returns a list with the dimension that the axis `axis` splits in `layout`, and the
    shard. The list is empty if the axis splits no dimension.
    """
    dims = enumerate(layout.full_dims(rank))
    return [(dim, shard) for dim, own in dims for shard in own if shard.axis == axis]


def _does(splits: Sequence[tuple[int, Shard]]) -> str:
    for dim, shard in splits:
        run = "" if shard.run is None else f" in runs of {shard.run}"
        return f"splits dimension {dim}{run}"
    return "splits nothing of it"


def settle_requests(module: ModuleOp, mesh: Mesh) -> None:
    """
    Adapts requests for arguments that were made before the mesh existed. Splits over
    axes that the mesh lacks are dropped, because these axes have size 1. The axes of a
    dimension are put into the order of the mesh. Raises DistIRError for a split that
    the sizes of the mesh do not allow.
    """
    _settle_constraints(module, mesh)
    function = entry_function(module)
    attributes, names = argument_attributes(function), argument_names(function)
    order = [axis for axis, _ in mesh.axes]
    for entry, name, type_ in zip(
        attributes, names, function.function_type.inputs.data, strict=True
    ):
        layout = requested_layout(entry)
        if FIXED not in entry or layout is None:
            continue
        fixed = [axis for axis in fixed_axes(entry) if axis in order]
        dims = [
            tuple(
                sorted(
                    (shard for shard in dim if shard.axis in order),
                    key=lambda shard: order.index(shard.axis),
                )
            )
            for dim in layout.dims
        ]
        asked = _along_parts(Layout(mesh.name, tuple(dims)), repacked_of(entry), mesh)
        settled = canonical(shape_of(type_), asked, mesh)
        by = listed(list(dict.fromkeys(origin_of(entry, axis) for axis in fixed)))
        check_layout(
            shape_of(type_),
            settled,
            mesh,
            f"argument {name!r}" + (f", as {by} asks" if by else ""),
        )
        entry[LAYOUT] = LayoutAttr(settled)
        entry[FIXED] = ArrayAttr([StringAttr(axis) for axis in fixed])
    set_argument_attributes(function, attributes)


def _settle_constraints(module: ModuleOp, mesh: Mesh) -> None:
    """
    Adapts requests for values that are not arguments to the mesh. Such a request is a
    `dist.constrain` op that records the source of the request. Requests that fix no
    axis of the mesh are removed. Raises DistIRError for a layout that is impossible on
    the mesh.
    """
    for _, op in list(walk_functions(module)):
        by = op.attributes.get(FIXED_BY)
        if not isinstance(op, ConstrainOp) or not isinstance(by, DictionaryAttr):
            continue
        if not any(op.fixes(axis) for axis, _ in mesh.axes):
            Rewriter.replace_op(op, [], [op.source])
            continue
        asked = Layout(mesh.name, op.layout.data.dims)
        origins = listed(
            [str(o.data) for o in by.data.values() if isinstance(o, StringAttr)]
        )
        what = f"what {describe(op)} speaks of, as {origins} asks"
        check_layout(shape_of(op.source.type), asked, mesh, what)
        op.properties["layout"] = LayoutAttr(asked)


def _along_parts(layout: Layout, repacked: Repacked | None, mesh: Mesh) -> Layout:
    """
    Returns the layout of an argument that holds several tensors of equal size side by
    side. Each of the tensors is split as `layout` splits the whole, so that every
    device gets its columns of each tensor. Returns `layout` unchanged if the argument
    does not hold such tensors, or if they cannot be split evenly.
    """
    if (
        repacked is None
        or not layout.dims
        or repacked.groups > 1
        or len(set(repacked.sizes)) > 1
    ):
        return layout
    left, shards = repacked.sizes[0], list[Shard]()
    for shard in layout.dim(repacked.dim):
        size = mesh.size(shard.axis)
        if shard.run is not None or left % size:
            return layout
        left //= size
        shards.append(Shard(shard.axis, left))
    return layout.with_dim(repacked.dim, shards, len(layout.dims))


def request_shards(
    module: ModuleOp,
    mesh: Mesh,
    requests: Sequence[str],
    degrees: Collection[str] = (),
) -> None:
    """
    Requests the splits `requests`, each `NAME:DIM=AXIS[:RUN]`. NAME is an argument's
    source name and may hold `*`. `degrees` are the axes that a user may give size 1: a
    split over such an axis is dropped if the mesh lacks it. Earlier requests are
    adapted to the mesh. Raises DistIRError for requests that contradict each other or
    the sizes, and for a split that a kernel would undo.
    """
    settle_requests(module, mesh)
    function = entry_function(module)
    for text in requests:
        for i, dim, shard in requested_splits(function, [text]):
            if shard.axis not in mesh.sizes and shard.axis in degrees:
                continue
            mesh.size(shard.axis)
            type_ = function.function_type.inputs.data[i]
            asked = Layout(mesh.name).with_dim(dim, (shard,), rank_of(type_))
            repacked = repacked_of(argument_attributes(function)[i])
            asked = _along_parts(asked, repacked, mesh)
            asked = canonical(shape_of(type_), asked, mesh)
            request(function, i, asked, [shard.axis], f"the split {text!r}")
    settle_requests(module, mesh)
    check_kernels(module)


def requested_splits(
    function: FuncOp, requests: Sequence[str]
) -> Iterator[tuple[int, int, Shard]]:
    """
    Yields the index of each argument that the requests `NAME:DIM=AXIS[:RUN]` name, with
    the dimension to split and its shard. Raises DistIRError for a malformed request, an
    unknown name, or a dimension that the argument lacks.
    """
    names = argument_names(function)
    for text in requests:
        name, dim, shard = _read_split(text)
        for i in _arguments(names, [name]):
            type_ = function.function_type.inputs.data[i]
            if dim >= rank_of(type_):
                raise DistIRError(
                    f"{names[i]!r} has no dimension {dim}: its type is {type_}"
                )
            yield i, dim, shard


def named_argument(request: str) -> str:
    """
    Returns NAME, a name or a pattern, from a request `NAME:DIM=AXIS[:RUN]`. Raises
    DistIRError for a malformed request.
    """
    return _read_split(request).name


class _Split(NamedTuple):
    """The fields of a request `NAME:DIM=AXIS[:RUN]`."""

    name: str
    dim: int
    shard: Shard


def _read_split(text: str) -> _Split:
    match = _REQUEST.fullmatch(text)
    if match is None:
        raise DistIRError(
            f"cannot read the split {text!r}; write "
            f"NAME:DIM=AXIS or NAME:DIM=AXIS:RUN, for example wte.weight:0=t"
        )
    run = int(match["run"]) if match["run"] else None
    if run == 0:
        raise DistIRError(
            f"the split {text!r} is in runs of 0 elements; give at least 1, or leave :0 out"
        )
    return _Split(match["name"], int(match["dim"]), Shard(match["axis"], run))


def keep_whole(module: ModuleOp, mesh: Mesh, patterns: Sequence[str]) -> None:
    """
    Requests that no axis of devices splits the arguments whose source names match
    `patterns`, which may hold `*`. Raises DistIRError if no argument matches a pattern,
    or if a split of a matching argument was requested before.
    """
    function = entry_function(module)
    names = argument_names(function)
    axes = [axis for axis, _ in mesh.axes if axis != TIME_AXIS]
    for pattern in patterns:
        for i in _arguments(names, [pattern]):
            request(function, i, Layout(mesh.name), axes, f"keeping {pattern!r} whole")


def check_whole(module: ModuleOp, patterns: Sequence[str]) -> None:
    """
    Raises DistIRError if the distributed program splits an argument whose name matches
    one of `patterns`.
    """
    function = entry_function(module)
    names, types = argument_names(function), function.function_type.inputs.data
    for i in _arguments(names, patterns):
        layout = layout_of(types[i])
        if layout is not None and layout.split_axes:
            raise DistIRError(
                f"{names[i]!r} is to be kept whole, but this plan splits it"
            )


def _arguments(names: Sequence[str], patterns: Sequence[str]) -> list[int]:
    """
    Returns the indices of the arguments whose names match one of `patterns`. Raises
    DistIRError for a pattern that matches no argument.
    """
    found: dict[int, None] = {}
    for pattern in patterns:
        chosen = [i for i, name in enumerate(names) if fnmatchcase(name, pattern)]
        if not chosen:
            raise DistIRError(
                f"no argument is called {pattern!r}; {did_you_mean(pattern, names)}"
                f"the program has "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            )
        found.update(dict.fromkeys(chosen))
    return list(found)


def check_kernels(module: ModuleOp) -> None:
    """
    Raises DistIRError if a kernel would undo a requested split of an argument. This is
    so if the kernel reads the argument and its rule keeps the dimension whole, so that
    every call would gather the argument. It happens if a kernel replaces ops that could
    be split, such as the last layer and the loss.
    """
    known = functions(module)
    for argument in Program(module).arguments:
        layout = requested_layout(argument.attributes)
        if layout is None:
            continue
        for axis in fixed_axes(argument.attributes):
            placement = placement_in(layout, axis)
            if not isinstance(placement, SplitPlacement):
                continue
            dim = placement.dim
            gathers = [
                call
                for call, index in _kernels_that_read(argument.value, known)
                if not _can_split(call, index, dim)
            ]
            if not gathers:
                continue
            order = [op for _, op in walk_functions(module)]
            call = min(gathers, key=order.index)  # the kernel, not its gradient
            raise DistIRError(
                f"argument {argument.name!r}: {origin_of(argument.attributes, axis)} asks that "
                f"axis {axis!r} splits dimension {dim}, but kernel @{call.symbol}, which reads it, keeps that "
                f"dimension whole (its rule is {call.rule.data!r}), so that each of its calls "
                f"would gather it; leave out the split, or the kernel: the ops that it takes "
                f"the place of may be split there"
            )


def _can_split(call: KernelCallOp, index: int, dim: int) -> bool:
    """
    Returns whether the rule of the kernel lets dimension `dim` of operand `index` be
    split.
    """
    rule = parse_rule(call.rule.data)
    factors = rule.operands[index][dim]
    return any(isinstance(f, str) and f not in rule.kept for f in factors)


def _kernels_that_read(
    value: SSAValue, known: Mapping[str, FuncOp]
) -> Iterator[tuple[KernelCallOp, int]]:
    """
    Yields the kernel calls that take `value` as an operand, with the operand's index.
    Also searches functions that receive `value` as an argument.
    """
    for use in value.uses:
        op = use.operation
        if isinstance(op, KernelCallOp):
            yield op, use.index
        elif isinstance(op, CallOp):
            callee = known[op.callee.string_value()]
            yield from _kernels_that_read(callee.body.block.args[use.index], known)
