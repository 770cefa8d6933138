"""Projects a program to one device, function by function."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from distir.errors import DistIRError
from distir.program import callees_first, functions
from distir.program.functions import left_alone
from distir.transforms.projection.devices import devices_of
from distir.transforms.projection.function import FunctionProjection
from distir.transforms.projection.rank_program import Projection


def project(module: ModuleOp, rank: int) -> ModuleOp:
    """
    Returns the per-rank form of a distributed program for the device with id `rank`, as a
    new module. Functions of which nothing runs there are left out, except the entry; those
    of others, beside the program, stay as they are. Raises DistIRError for a device that
    the program does not use, and for recursive calls.
    """
    devices = devices_of(module)
    if rank not in devices:
        raise DistIRError(
            f"the program does not run on device {rank}; its devices are "
            f"{', '.join(map(str, devices))}"
        )
    alone = left_alone(module)
    own = [f for f in functions(module).values() if f not in alone]
    # Projecting a call projects its function first, which a circle has no order for.
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
