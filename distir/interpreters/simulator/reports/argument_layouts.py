"""Reports the layouts of a program's arguments, and the size of each device's part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute

from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.interpreters.simulator.engine.scopes import pattern
from distir.program import Program
from distir.sharding.layout import local_shape
from distir.sharding.mesh import Mesh, meshes


@dataclass(frozen=True)
class ArgumentLayout:
    """
    Arguments of a program that have the same layout.

    Attributes:
        name: One name for all arguments, with `*` for the number of a layer and for the
            kind of a state.
        names: The names of the single arguments.
        role: `parameter`, `state`, `input`, ...
        element_type: The type of the elements, such as `f32`.
        shape: The shape of the whole tensor.
        split: For each dimension, the mesh axes that split it, major to minor.
        partial: The mesh axes over which the devices hold terms of a sum.
        local_shape: The shape of one device's part.
        local_bytes: The bytes of one device's part of one argument.
        meshes: The names of the meshes that hold the arguments; `()` in a sequential
            program.
    """

    name: str
    names: tuple[str, ...]
    role: str
    element_type: str
    shape: tuple[int, ...]
    split: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...]
    local_shape: tuple[int, ...]
    local_bytes: int
    meshes: tuple[str, ...]

    @property
    def split_text(self) -> str:
        """
        The split as text, with one entry per dimension: `-` for a dimension that is not
        split, `d,t` for one that two axes split. The text is `whole` if nothing is
        split.
        """
        if not any(self.split) and not self.partial:
            return "whole"
        dims = " x ".join(",".join(axes) or "-" for axes in self.split)
        return dims + (f" +{','.join(self.partial)}" if self.partial else "")

    def to_json(self) -> dict[str, Any]:
        """Returns the entry as JSON data."""
        return {
            "name": self.name,
            "names": list(self.names),
            "role": self.role,
            "element_type": self.element_type,
            "shape": list(self.shape),
            "split": [list(axes) for axes in self.split],
            "partial": list(self.partial),
            "local_shape": list(self.local_shape),
            "local_bytes": self.local_bytes,
            "meshes": list(self.meshes),
        }


def argument_layouts(module: ModuleOp, by_layer: bool = False) -> list[ArgumentLayout]:
    """
    Returns the layouts of a program's arguments, in the order of the arguments. Layers
    with the same layout are combined into one entry, unless `by_layer` is set. States
    of a parameter with the same layout are always combined. Raises DistIRError if the
    program is not valid.
    """
    program, known = Program(module), meshes(module)
    found: dict[tuple[object, ...], list[ArgumentLayout]] = {}
    for argument in program.arguments:
        entry = _argument_layout(argument.name, argument.role, argument.type, known)
        if entry is None:
            continue
        of_parameter = program.states.get(argument.index, argument.index)
        owner = program.arguments[of_parameter].name
        of_layers = owner if by_layer else pattern(owner)
        key = (of_layers, entry.role, entry.element_type, entry.shape, entry.split)
        found.setdefault((*key, entry.partial), []).append(entry)
    return [_merged(str(of_layers), of) for (of_layers, *_), of in found.items()]


def _argument_layout(
    name: str, role: str, type_: Attribute, known: dict[str, Mesh]
) -> ArgumentLayout | None:
    """
    Returns the entry of one argument, or None if the argument is not a tensor of known
    shape.
    """
    if not isinstance(type_, TensorType):
        return None
    shape = type_.get_shape()
    if any(size < 0 for size in shape):
        return None
    layout = layout_of(type_)
    split: tuple[tuple[str, ...], ...] = ((),) * len(shape)
    local = shape
    if layout is not None:
        dims = layout.full_dims(len(shape))
        split = tuple(tuple(shard.axis for shard in dim) for dim in dims)
        local = local_shape(shape, layout, known[layout.mesh])
    element = type_.element_type
    return ArgumentLayout(
        name,
        (name,),
        role,
        str(element),
        shape,
        split,
        () if layout is None else layout.partial_axes,
        local,
        round(prod(local) * bytes_per_element(element)),
        () if layout is None else (layout.mesh,),
    )


def _merged(owner: str, entries: Sequence[ArgumentLayout]) -> ArgumentLayout:
    """
    Merges the entries of arguments with the same layout into one. `owner` is the common
    name of the arguments or, for states of the optimizer, the common name of the
    parameters.
    """
    first = entries[0]
    if len(entries) == 1:
        return first
    kinds = {pattern(entry.name) for entry in entries}
    names = tuple(entry.name for entry in entries)
    on = tuple(dict.fromkeys(mesh for entry in entries for mesh in entry.meshes))
    one = f"{owner}.*" if len(kinds) > 1 else pattern(first.name)
    return replace(first, name=one, names=names, meshes=on)
