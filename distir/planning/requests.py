"""What a user fixes before a search: axes, splits of arguments, arguments kept whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr, Shard, layout_of
from distir.errors import DistIRError
from distir.planning.annotations import request_split, requested_layout
from distir.program import (
    argument_attributes,
    argument_names,
    entry_function,
    set_argument_attributes,
)
from distir.sharding.layout import canonical, check_layout
from distir.sharding.mesh import Mesh
from distir.sharding.rule import rank_of, shape_of

_AXIS = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<size>\d+)")
_REQUEST = re.compile(r"(?P<name>.+):(?P<dim>\d+)=(?P<axis>\w+)(:(?P<run>\d+))?")


@dataclass(frozen=True)
class Requests:
    """
    What every plan of a search must keep to.

    - `shard`: layouts that arguments must have, each `NAME:DIM=AXIS[:RUN]`;
    - `whole`: names (with `*`) of arguments that must not be split;
    - `seconds`: of solving for layouts, for each plan; None for what the search thinks fit;
    - `limit`: seconds after which the search of a plan's layouts ends with the best so far.
    """

    shard: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    seconds: float | None = None
    limit: float | None = None

    @property
    def axes(self) -> frozenset[str]:
        """The axes that `shard` names. Raises DistIRError."""
        return frozenset(_read_split(text).shard.axis for text in self.shard)

    def check(self, module: ModuleOp, axes: Collection[str]) -> None:
        """
        Refuses requests that no plan can keep: of arguments that a program does not have,
        of axes that no mesh has, and of arguments both split and whole.
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


def request_shards(module: ModuleOp, mesh: Mesh, requests: Sequence[str]) -> None:
    """
    Annotates arguments with the splits that a user asks for: `NAME:DIM=AXIS[:RUN]`,
    where NAME is an argument's source name and may hold `*`. Raises DistIRError.
    """
    function = entry_function(module)
    attributes = argument_attributes(function)
    names = argument_names(function)
    for i, dim, shard in requested_splits(function, requests):
        type_ = function.function_type.inputs.data[i]
        layout = requested_layout(attributes[i]) or Layout(mesh.name)
        layout = request_split(layout, dim, shard, rank_of(type_))
        layout = canonical(shape_of(type_), layout, mesh)
        check_layout(shape_of(type_), layout, mesh, f"argument {names[i]!r}")
        attributes[i][LAYOUT] = LayoutAttr(layout)
    set_argument_attributes(function, attributes)


def requested_splits(
    function: FuncOp, requests: Sequence[str]
) -> Iterator[tuple[int, int, Shard]]:
    """
    The arguments that `NAME:DIM=AXIS[:RUN]` mean, each with its dimension and how that is
    split. Raises DistIRError.
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
    """The name or pattern in `NAME:DIM=AXIS[:RUN]`. Raises DistIRError."""
    return _read_split(request).name


class _Split(NamedTuple):
    """What `NAME:DIM=AXIS[:RUN]` says."""

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
    return _Split(match["name"], int(match["dim"]), Shard(match["axis"], run))


def axes_of(texts: Sequence[str], what: str) -> list[tuple[str, int]]:
    """The names and sizes of `NAME=SIZE`, as pass `what` is given them. Raises DistIRError."""
    found: list[tuple[str, int]] = []
    for text in texts:
        match = _AXIS.fullmatch(text)
        if match is None:
            raise DistIRError(
                f"{what}: cannot read the axis {text!r}; write NAME=SIZE, for "
                f'example axes="d=2","t=4"'
            )
        found.append((match["name"], int(match["size"])))
    return found


def keep_whole(module: ModuleOp, mesh: Mesh, patterns: Sequence[str]) -> None:
    """Requests that arguments with these source names (with `*`) are not split."""
    function = entry_function(module)
    attributes, names = argument_attributes(function), argument_names(function)
    for i in _arguments(names, patterns):
        if (requested_layout(attributes[i]) or Layout(mesh.name)).split_axes:
            raise DistIRError(
                f"search-sharding: {names[i]!r} is to be split and to be kept whole"
            )
        attributes[i][LAYOUT] = LayoutAttr(Layout(mesh.name))
    set_argument_attributes(function, attributes)


def check_whole(module: ModuleOp, patterns: Sequence[str]) -> None:
    """Refuses a distributed program that splits one of these arguments."""
    function = entry_function(module)
    names, types = argument_names(function), function.function_type.inputs.data
    for i in _arguments(names, patterns):
        layout = layout_of(types[i])
        if layout is not None and layout.split_axes:
            raise DistIRError(
                f"{names[i]!r} is to be kept whole, but this plan splits it"
            )


def _arguments(names: Sequence[str], patterns: Sequence[str]) -> list[int]:
    """The arguments with these names. Raises DistIRError for a name that none has."""
    found: dict[int, None] = {}
    for pattern in patterns:
        chosen = [i for i, name in enumerate(names) if fnmatchcase(name, pattern)]
        if not chosen:
            raise DistIRError(
                f"no argument is called {pattern!r}; the program has "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            )
        found.update(dict.fromkeys(chosen))
    return list(found)
