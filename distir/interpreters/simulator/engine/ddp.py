"""
The buckets of PyTorch's DistributedDataParallel.

DDP copies each gradient into a buffer, reduces it there, and copies it back. It keeps
these buffers, the buckets, from one step to the next. So the gradients of all replicated
parameters are in memory throughout a step, and those that a step has computed are there
twice. With `gradient_as_bucket_view`, which is off by default, they are there once.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from distir.dialects.dist import Layout, layout_of
from distir.interpreters.simulator.engine.compiled import Allocation
from distir.interpreters.simulator.engine.device_map import DeviceMap
from distir.program import (
    argument_roles,
    parameters_of_gradients,
    parameters_of_states,
    updated_arguments,
)


def gradient_buckets(
    function: FuncOp,
    types: Sequence[Attribute],
    arguments: Sequence[Allocation],
    device_map: DeviceMap,
) -> list[Allocation]:
    """
    Returns the memory of the buckets of a training step, if the profile says that the
    software is DDP: one allocation for each trained parameter that devices with
    different samples hold alike. These devices have different parts of the inputs.
    `function` has the roles of the arguments; `types` are their types, and `arguments`
    their memory.

    Parameters whose states are split over these devices (ZeRO 1) do not count: their
    gradients are not reduced in buckets. A gradient has the type of its parameter.
    """
    if not device_map.hardware.is_ddp:
        return []
    layouts = [layout_of(type_) for type_ in types]
    roles = argument_roles(function)
    data = {
        axis
        for role, layout in zip(roles, layouts, strict=True)
        if role in ("input", "label") and layout is not None
        for axis in _split_axes(layout, device_map)
    }
    trained = {
        *updated_arguments(function).values(),
        *parameters_of_gradients(function).values(),
    }
    split = {
        parameter
        for state, parameter in parameters_of_states(function).items()
        if (layout := layouts[state]) is not None
        and not data.isdisjoint(layout.split_axes)
    }
    return [
        arguments[i]
        for i, (role, layout) in enumerate(zip(roles, layouts, strict=True))
        if role == "parameter"
        and i in trained
        and i not in split
        and layout is not None
        and data
        and data.isdisjoint(layout.split_axes)
    ]


def _split_axes(layout: Layout, device_map: DeviceMap) -> list[str]:
    """Returns the axes of several devices over which `layout` splits a tensor."""
    sizes = device_map.meshes[layout.mesh].sizes
    return [axis for axis in layout.split_axes if sizes[axis] > 1]
