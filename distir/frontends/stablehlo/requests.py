"""
Turns the shardings of a StableHLO file into requests of the program: layouts of
arguments (`dist.layout`) and of inner values (`dist.constrain`). Every way to
distribute the program obeys these requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import LAYOUT, ConstrainOp, Layout, LayoutAttr, Shard
from distir.dialects.dist_attributes import FIXED, FIXED_BY
from distir.dialects.tensors import rank_of
from distir.errors import DistIRError, listed
from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.assembly import op_name
from distir.frontends.stablehlo.gspmd import read_gspmd
from distir.frontends.stablehlo.sdy import mesh_axes, read_sdy
from distir.frontends.stablehlo.sharding import Annotation, Axes, Sharding
from distir.program import (
    argument_attributes,
    entry_function,
    set_argument_attributes,
)
from distir.sharding.mesh import MESH

SDY, GSPMD = "sdy.sharding", "mhlo.sharding"
"""The attributes of arguments and results that hold a sharding."""

BATCH, SEQUENCE, OTHER = ("r", "d"), ("c",), ("t",)
"""
The axes of `distribute`: of those that split the batch, the outer and the inner one; the
one that splits sequences; the one that splits the rest.
"""

ORIGIN = "a sharding in the file"


@dataclass(frozen=True)
class ShardingRequests:
    """
    The shardings of a file, over the axes that `distribute` knows.

    - `names`: for each axis of the file's mesh that splits a value, the axis of
      `distribute` that stands for it, and the size;
    - `arguments`, `results`: one entry for each argument and result of the entry
      function: its sharding, or None;
    - `inside`: the shardings of inner values, by the op that constrains the value;
    - `unused`: the axes of the file's mesh that split nothing.
    """

    names: Mapping[str, tuple[str, int]]
    arguments: Sequence[Sharding | None]
    results: Sequence[Sharding | None]
    inside: Mapping[Operation, Sharding]
    unused: Sequence[str]

    def constrained(self, value: SSAValue, asked: Sharding) -> ConstrainOp | None:
        """
        Returns an op that requests the sharding `asked` for `value`, or None if the
        sharding leaves all axes free.
        """
        layout, axes = self._layout(asked, rank_of(value.type))
        if not axes:
            return None
        made = ConstrainOp(value, layout, axes)
        made.attributes[FIXED_BY] = _origins(axes)
        return made

    def apply(self, module: ModuleOp) -> None:
        """
        Sets the shardings of the entry function's arguments as layout requests, in
        place.
        """
        function = entry_function(module)
        entries = argument_attributes(function)
        for index, asked in enumerate(self.arguments):
            if asked is None:
                continue
            rank = rank_of(function.function_type.inputs.data[index])
            layout, axes = self._layout(asked, rank)
            if axes:
                entries[index][LAYOUT] = LayoutAttr(layout)
                entries[index][FIXED] = ArrayAttr([StringAttr(axis) for axis in axes])
                entries[index][FIXED_BY] = _origins(axes)
        set_argument_attributes(function, entries)

    def _layout(self, asked: Sharding, rank: int) -> tuple[Layout, list[str]]:
        """
        Returns the layout of a sharding for a tensor of `rank` dimensions, and the axes
        that the sharding fixes.
        """
        layout = Layout(MESH)
        for dim, axes in enumerate(asked.dims):
            shards = [Shard(self.names[axis][0]) for axis in axes]
            layout = layout.with_dim(dim, shards, rank)
        fixed = [own for axis, (own, _) in self.names.items() if axis in asked.fixed]
        return layout, fixed

    @property
    def count(self) -> int:
        """The number of shardings in the file."""
        given = [own for own in (*self.arguments, *self.results) if own is not None]
        return len(given) + len(self.inside)

    def notes(self, source: str) -> list[str]:
        """
        Returns notes for the user, such as the sizes of the axes of the file's mesh.
        """
        if not self.count:
            return []
        if not self.names:
            return [f"the shardings in {source} split nothing"]
        kept = [
            f"{axis} ({size}) is -{own}" for axis, (own, size) in self.names.items()
        ]
        degrees = " ".join(f"-{own} {size}" for own, size in self.names.values())
        found = [
            f"{self.count} shardings in {source} are requests: axis {', '.join(kept)}; to "
            f"distribute as there, `distir distribute` with {degrees}"
        ]
        if self.unused:
            found.append(
                f"{listed(self.unused)} of the mesh in {source} split nothing, and are left out"
            )
        return found


def is_constraint(op: Operation) -> bool:
    """
    Whether `op` is a sharding constraint: it returns its operand and requests a
    sharding for it.
    """
    if op_name(op) == "stablehlo.custom_call":
        target = attributes.text(attributes.attribute(op, "call_target_name"))
        return target == "Sharding"
    return op_name(op) in ("sdy.sharding_constraint", "sdy.reshard")


def read_requests(
    module: ModuleOp, function: FuncOp, inputs: Collection[int], source: str
) -> ShardingRequests:
    """
    Returns the shardings of a parsed StableHLO module with the entry function
    `function`. `inputs` are the indices of the arguments that hold the batch. Raises
    DistIRError for shardings that no layout can express, and for a mesh with more axes
    than `distribute` has; the error's message names the file `source`.
    """
    given = entries(function.arg_attrs, len(function.function_type.inputs))
    returned = entries(function.res_attrs, len(function.function_type.outputs))
    inside = [op for op in module.walk() if is_constraint(op)]
    texts = [_of_value(own, f"{source}: argument {i}") for i, own in enumerate(given)]
    texts += [_of_value(own, f"{source}: result {i}") for i, own in enumerate(returned)]
    texts += [_of_constraint(op, source) for op in inside]
    is_gspmd = any(GSPMD in own for own in (*given, *returned)) or any(
        op_name(op) == "stablehlo.custom_call" for op in inside
    )
    if is_gspmd:
        axes, found = read_gspmd(texts)
    else:
        meshes = {
            attributes.text(op.properties.get("sym_name")): mesh_axes(
                attributes.text(op.properties.get("mesh"))
            )
            for op in module.ops
            if op_name(op) == "sdy.mesh"
        }
        axes, found = read_sdy(texts, meshes)
    first, second = len(given), len(given) + len(returned)
    constraints = zip(inside, found[second:], strict=True)
    names, unused = _names(axes, found, [found[i] for i in sorted(inputs)], source)
    return ShardingRequests(
        names,
        found[:first],
        found[first:second],
        {op: own for op, own in constraints if own is not None},
        unused,
    )


def entries(attr: Attribute | None, length: int) -> list[dict[str, Attribute]]:
    """
    Returns the attributes of each of the `length` arguments or results of a function,
    as a dictionary by name.
    """
    if not isinstance(attr, ArrayAttr):
        return [{} for _ in range(length)]
    return [
        dict(entry.data) if isinstance(entry, DictionaryAttr) else {}
        for entry in attr.data
    ]


def _of_value(own: Mapping[str, Attribute], what: str) -> Annotation:
    return Annotation(what, attributes.text(own.get(SDY, own.get(GSPMD))))


def _of_constraint(op: Operation, source: str) -> Annotation:
    what = f"{source}: {op_name(op)}"
    if op_name(op) != "stablehlo.custom_call":
        return Annotation(what, attributes.text(attributes.attribute(op, "sharding")))
    parts = [attributes.attribute(op, name) for name in (GSPMD, "backend_config")]
    return Annotation(what, " ".join(map(attributes.text, parts)))


def _names(
    axes: Axes,
    found: Iterable[Sharding | None],
    inputs: Sequence[Sharding | None],
    source: str,
) -> tuple[dict[str, tuple[str, int]], list[str]]:
    """
    Returns, for each axis of the file's mesh that splits a value, the axis of
    `distribute` that stands for it and its size. Also returns the axes that split
    nothing. The axis of `distribute` depends on how the axis of the mesh splits the
    inputs, not on its name.
    """
    used = {
        axis for own in found if own is not None for dim in own.dims for axis in dim
    }
    by_dim: list[set[str]] = [set(), set()]
    for own in inputs:
        for dim, split in enumerate(own.dims[:2] if own is not None else ()):
            by_dim[dim].update(split)
    roles = [
        (BATCH, [axis for axis, _ in axes if axis in by_dim[0]]),
        (SEQUENCE, [axis for axis, _ in axes if axis in by_dim[1] - by_dim[0]]),
    ]
    taken = by_dim[0] | by_dim[1]
    roles.append((OTHER, [axis for axis, _ in axes if axis in used - taken]))
    names: dict[str, str] = {}
    for letters, own in roles:
        if len(own) > len(letters):
            raise DistIRError(
                f"{source}: axes {listed(own)} of its mesh do the same, for which "
                f"`distir distribute` has -{' and -'.join(letters)} alone; make one axis of "
                f"them, or import the file with --ignore-shardings"
            )
        names.update(zip(own, letters[len(letters) - len(own) :], strict=True))
    named = {axis: (names[axis], size) for axis, size in axes if axis in names}
    return named, [axis for axis, _ in axes if axis not in names]


def _origins(axes: Sequence[str]) -> DictionaryAttr:
    return DictionaryAttr({axis: StringAttr(ORIGIN) for axis in axes})
