"""The devices that a program runs on."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from distir.dialects.dist import layout_of
from distir.errors import DistIRError
from distir.program import functions
from distir.sharding.mesh import meshes


def devices_of(module: ModuleOp) -> tuple[int, ...]:
    """
    Returns the devices that a program runs on, ascending: those of every mesh that a value
    lives on, or device 0 alone for a sequential program.
    """
    known = meshes(module)
    used = {
        layout.mesh
        for function in functions(module).values()
        for type_ in _types_in(function)
        if (layout := layout_of(type_)) is not None
    }
    missing = used - known.keys()
    if missing:
        raise DistIRError(f"there is no device.mesh @{min(missing)} in the module")
    return tuple(sorted({d for name in used for d in known[name].devices})) or (0,)


def _types_in(function: FuncOp) -> Iterable[Attribute]:
    yield from function.function_type.inputs
    yield from function.function_type.outputs
    for op in function.body.block.ops:
        yield from op.result_types
