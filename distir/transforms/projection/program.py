"""Projects a program to one of its devices, function by function."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from distir.dialects.dist import layout_of
from distir.errors import DistIRError
from distir.program import callees_first, functions
from distir.program.functions import left_alone
from distir.sharding.mesh import meshes
from distir.transforms.projection.function import FunctionProjection
from distir.transforms.projection.rank_program import Projection


def devices_of(module: ModuleOp) -> tuple[int, ...]:
    """
    Returns the devices on which a program runs, in ascending order. These are the
    devices of all meshes that layouts of values name, or device 0 alone for a
    sequential program. Raises DistIRError if a mesh is missing.
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


def project(module: ModuleOp, rank: int) -> ModuleOp:
    """
    Returns the program of the device `rank`, derived from a distributed program, as a
    new module with local types. Leaves out functions without any work on the device,
    except for the entry function. Functions that do not belong to the program stay
    unchanged. Raises DistIRError if the program does not use the device or has
    recursive calls.
    """
    devices = devices_of(module)
    if rank not in devices:
        raise DistIRError(
            f"the program does not run on device {rank}; its devices are "
            f"{', '.join(map(str, devices))}"
        )
    alone = left_alone(module)
    own = [f for f in functions(module).values() if f not in alone]
    # Projecting a call projects its function first. Recursive calls have no such order.
    callees_first(module, [f for f in own if not f.is_declaration])
    program = Projection(
        module, rank, lambda own, function: FunctionProjection(own, function).result()
    )
    bodies: list[Operation] = []
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op not in alone:
            function = program.function(op.sym_name.data)
            if function is not None:
                bodies.append(function)
        else:
            bodies.append(op.clone())
    result = ModuleOp(bodies)
    result.attributes.update(module.attributes)
    return result
