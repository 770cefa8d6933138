"""Draws the elements of tensors that each device of a mesh holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp

from distir.dialects.dist import layout_of
from distir.sharding.layout import shard_indices
from distir.sharding.mesh import Mesh, only_mesh
from distir.text.parser import ProgramParser, new_context
from website.drawings.canvas import COLOURS, Panel, box, label

_SHEET = 92
_BETWEEN = 26
_LEFT = 262


def layout_panel(told: Mapping[str, Any]) -> Panel:
    """
    Returns a row of sheets for each tensor, one sheet per device. The elements that the
    device holds are coloured; terms of a sum that is still to be made are hatched. `told`
    has the `mesh` (sizes by axis) and the `tensor`s, each with `name`, `shape`, `layout`
    and `note`.
    """
    axes = ", ".join(f"{axis} = {size}" for axis, size in told["mesh"].items())
    devices = int(np.prod(list(told["mesh"].values())))
    parts = [
        label(16, 26, told["title"], "title"),
        '<defs><pattern id="terms" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="3" height="6" fill="white" '
        'fill-opacity="0.55"/></pattern></defs>',
    ]
    top = 62
    for device in range(devices):
        place = _LEFT + device * (_SHEET + _BETWEEN) + _SHEET / 2
        parts.append(label(place, top - 10, f"device {device}", "small", "middle"))
    for tensor in told["tensor"]:
        rows, columns = tensor["shape"]
        height = round(_SHEET * min(1.0, rows / columns + 0.15))
        parts.append(label(16, top + 16, tensor["name"], "title"))
        shape = " x ".join(map(str, tensor["shape"]))
        parts.append(label(16, top + 36, f"{shape}  {tensor['layout']}", "code"))
        parts.append(label(16, top + 54, tensor["note"], "small"))
        mesh, type_ = _parsed(axes, devices, tensor["shape"], tensor["layout"])
        for device in range(devices):
            x = _LEFT + device * (_SHEET + _BETWEEN)
            parts += _sheet(x, top, height, mesh, type_, device)
        top += max(height, 60) + 22
    return Panel(_LEFT + devices * (_SHEET + _BETWEEN), top, parts)


def _parsed(
    axes: str, devices: int, shape: list[int], layout: str
) -> tuple[Mesh, TensorType[Any]]:
    """Returns a mesh, and the type of a tensor of the given shape and layout on it."""
    sizes = "x".join(map(str, shape))
    text = (
        f"device.mesh @mesh on @cluster <{axes}> [0 to {devices}]\n"
        f"func.func private @f(tensor<{sizes}xf32, #dist.layout<@mesh, {layout}>>) -> ()\n"
    )
    module = ProgramParser(new_context(), text).parse_module()
    (function,) = (op for op in module.ops if isinstance(op, FuncOp))
    (found,) = function.function_type.inputs
    assert isinstance(found, TensorType)
    return only_mesh(module), found


def _sheet(
    x: float, y: float, height: int, mesh: Mesh, type_: TensorType[Any], device: int
) -> list[str]:
    """Returns the sheet of one device: the whole tensor, and its part in colour."""
    layout = layout_of(type_)
    assert layout is not None
    rows, columns = type_.get_shape()
    of_rows, of_columns = (
        shard_indices(size, shards, mesh, mesh.coordinates_of(device))
        for size, shards in zip((rows, columns), layout.full_dims(2), strict=True)
    )
    parts = [box(x, y, _SHEET, height, "#f2f2f2", "sheet")]
    colour = COLOURS[device % len(COLOURS)]
    for row, rows_on in _runs(of_rows):
        for column, columns_on in _runs(of_columns):
            place = (
                x + _SHEET * column / columns,
                y + height * row / rows,
                _SHEET * columns_on / columns,
                height * rows_on / rows,
            )
            parts.append(box(*place, colour))
            if layout.partial_axes:
                parts.append(box(*place, "url(#terms)"))
    return parts


def _runs(indices: Any) -> list[tuple[int, int]]:
    """Returns the starts and lengths of runs of consecutive indices."""
    found: list[tuple[int, int]] = []
    for index in np.asarray(indices).reshape(-1).tolist():
        if found and sum(found[-1]) == index:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((index, 1))
    return found
