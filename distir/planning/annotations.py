"""
Reads and writes the layouts that are requested for arguments, and notes for the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr, Shard
from distir.dialects.dist_attributes import FIXED, FIXED_BY, NOTES
from distir.errors import DistIRError
from distir.sharding.mesh import Mesh, meshes


def axis_mesh(module: ModuleOp, axis: str) -> Mesh:
    """
    Returns the only mesh of the module that has the axis `axis`. Raises DistIRError if
    no mesh has this axis, or if several meshes have it.
    """
    known = meshes(module)
    found = [mesh for mesh in known.values() if axis in mesh.sizes]
    if len(found) == 1:
        return found[0]
    listing = ", ".join(f"@{m.name} {dict(m.axes)}" for m in known.values()) or "none"
    how_many = "no mesh has" if not found else "several meshes have"
    raise DistIRError(f"{how_many} an axis {axis!r} (meshes of this module: {listing})")


def requested_layout(attributes: Mapping[str, Attribute]) -> Layout | None:
    """
    Returns the layout that the attributes of an argument request, or None if they
    request none.
    """
    attr = attributes.get(LAYOUT)
    return attr.data if type(attr) is LayoutAttr else None


def fixed_axes(attributes: Mapping[str, Attribute]) -> tuple[str, ...]:
    """
    Returns the mesh axes that the user has fixed for an argument: no pass may change
    how these axes split the argument. `attributes` are the argument's attributes.
    """
    attr = attributes.get(FIXED)
    # `isinstance` is slow where the answer is no, and most arguments have none.
    if attr is None or not isinstance(attr, ArrayAttr):
        return ()
    return tuple(a.data for a in attr.data if isinstance(a, StringAttr))


def origin_of(attributes: Mapping[str, Attribute], axis: str) -> str:
    """
    Returns a name, for an error message, of the request or pass that fixed how the axis
    `axis` splits an argument. `attributes` are the argument's attributes.
    """
    attr = attributes.get(FIXED_BY)
    origin = attr.data.get(axis) if isinstance(attr, DictionaryAttr) else None
    if isinstance(origin, StringAttr):
        return origin.data
    return f"`{FIXED}`" if axis in fixed_axes(attributes) else "a pass before"


def request_split(
    layout: Layout, dim: int, shard: Shard, rank: int, mesh: Mesh
) -> Layout:
    """
    Returns `layout` with the shard `shard` added to dimension `dim`. The axes of a
    dimension are kept in the order of the mesh. Returns `layout` unchanged if it
    already splits a dimension over the shard's axis.
    """
    if shard.axis in layout.split_axes:
        return layout
    order = [axis for axis, _ in mesh.axes]
    shards = sorted((*layout.dim(dim), shard), key=lambda s: order.index(s.axis))
    return layout.with_dim(dim, shards, rank)


def add_notes(module: ModuleOp, notes: Sequence[str]) -> None:
    """
    Appends notes for the user to the module attribute `dist.notes`, each only once.
    """
    known = read_notes(module)
    new = [note for note in dict.fromkeys(notes) if note not in known]
    if new:
        module.attributes[NOTES] = ArrayAttr([StringAttr(n) for n in (*known, *new)])


def read_notes(module: ModuleOp) -> list[str]:
    """Returns the notes that passes left for the user."""
    attr = module.attributes.get(NOTES)
    if not isinstance(attr, ArrayAttr):
        return []
    return [a.data for a in attr.data if isinstance(a, StringAttr)]
