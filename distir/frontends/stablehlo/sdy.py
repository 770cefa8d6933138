"""
Reads shardings of Shardy, such as `<@mesh, [{"data"}, {?}], replicated={"model"}>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from distir.errors import DistIRError
from distir.frontends.stablehlo.sharding import Annotation, Axes, Sharding

_AXES = re.compile(r'"([^"]+)"\s*=\s*(\d+)')
_DIMS = re.compile(r"\[((?:\s*\{[^}]*\}(?:p\d+)?\s*,?)*)\]")
_DIM = re.compile(r"\{([^}]*)\}")
_QUOTED = re.compile(r'"([^"]+)"')
_SUB_AXIS = re.compile(r'"([^"]+)"\s*:\s*\(')
_REPLICATED = re.compile(r"replicated\s*=\s*\{(.*?)\}")
_UNREDUCED = re.compile(r'unreduced\s*=\s*\{\s*"')
_MESH = re.compile(r"@([\w$.\-]+)")
_INLINE = re.compile(r"\bmesh\s*<(.*?)>\s*,", re.DOTALL)
_IGNORE = "import the file with --ignore-shardings"


def mesh_axes(text: str) -> Axes:
    """
    Returns the names and sizes of the axes larger than 1 of a mesh in Shardy's text,
    such as `<["data"=4, "model"=2]>`.
    """
    return tuple((name, int(n)) for name, n in _AXES.findall(text) if int(n) > 1)


def read_sdy(
    annotations: Sequence[Annotation], meshes: Mapping[str, Axes]
) -> tuple[Axes, list[Sharding | None]]:
    """
    Returns the axes of the mesh that all annotations share, and one entry for each
    annotation: its sharding, or None if the annotation has no text. `meshes` are the
    meshes of the file, by name. Raises DistIRError for a sharding that no layout can
    express, and for shardings on different meshes.
    """
    found: list[Sharding | None] = []
    axes: Axes = ()
    where = ""
    for annotation in annotations:
        if not annotation.text:
            found.append(None)
            continue
        own = _axes_of(annotation, meshes)
        if own and axes and own != axes:
            raise DistIRError(
                f"{annotation.what} has a sharding on mesh {dict(own)}, but {where} on "
                f"{dict(axes)}; lower the function with one mesh, or {_IGNORE}"
            )
        if own and not axes:
            axes, where = own, annotation.what
        found.append(_sharding(annotation, [name for name, _ in own]))
    return axes, found


def _axes_of(annotation: Annotation, meshes: Mapping[str, Axes]) -> Axes:
    """
    Returns the axes of the mesh of a sharding. The text of the sharding either contains
    the mesh or names one of `meshes`.
    """
    inline = _INLINE.search(annotation.text)
    if inline is not None:
        return mesh_axes(inline[1])
    symbol = _MESH.search(annotation.text)
    if symbol is None or symbol[1] not in meshes:
        name = symbol[1] if symbol else ""
        raise DistIRError(
            f"{annotation.what} has a sharding on mesh @{name}, which the file does not "
            f"declare; add its sdy.mesh, or {_IGNORE}"
        )
    return meshes[symbol[1]]


def _sharding(annotation: Annotation, names: Sequence[str]) -> Sharding:
    what, text = annotation
    text = _INLINE.sub("", text)
    if sub := _SUB_AXIS.search(text):
        raise DistIRError(
            f"{what} is sharded over a part of axis {sub[1]!r}, but a layout has whole axes; "
            f"make two axes of it, or {_IGNORE}"
        )
    if _UNREDUCED.search(text):
        raise DistIRError(
            f"{what} is to stay unreduced, which no request can say; {_IGNORE}"
        )
    inner = _DIMS.search(text)
    if inner is None:
        raise DistIRError(f"{what} has the sharding {text!r}, which cannot be read")
    listed: list[str] = _DIM.findall(inner[1])
    dims = tuple(
        tuple(axis for axis in _QUOTED.findall(dim) if axis in names) for dim in listed
    )
    if not any("?" in dim for dim in listed):
        return Sharding(dims, frozenset(names))
    replicated = _REPLICATED.search(text)
    kept: list[str] = _QUOTED.findall(replicated[1]) if replicated else []
    split = {axis for dim in dims for axis in dim}
    return Sharding(dims, frozenset(split.union(kept).intersection(names)))
