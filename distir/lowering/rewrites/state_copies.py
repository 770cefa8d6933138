"""
Fuses copies of optimizer states between the host and the device. States are arguments
of the program in the host's memory. Neighbouring copies become one call, which stores
new states over the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.host import is_on_host
from distir.dialects.torch import StateCopiesOp
from distir.dialects.train_ops.offload import FetchOp, OffloadOp
from distir.errors import DistIRError
from distir.program import (
    describe,
    entry_function,
    return_op,
    updated_arguments,
)


def fuse_state_copies(module: ModuleOp) -> None:
    """
    Fuses neighbouring copies of a per-rank program's arguments to the device, and
    neighbouring copies of new values back to the arguments that they update. Raises
    DistIRError if an argument or result in the host's memory is used in another way.
    """
    entry = entry_function(module)
    targets = _targets(entry)
    group: list[Operation] = []
    for op in list(entry.body.block.ops):
        if group and type(op) is not type(group[0]):
            _replace(group, targets)
            group = []
        is_load = isinstance(op, FetchOp) and isinstance(op.x, BlockArgument)
        if is_load or (isinstance(op, OffloadOp) and op.y in targets):
            group.append(op)


def _targets(entry: FuncOp) -> dict[SSAValue, SSAValue]:
    """
    Returns the results in the host's memory, each with the argument that it updates.
    Raises DistIRError if an argument or result in the host's memory is used in another
    way.
    """
    updated, end = updated_arguments(entry), return_op(entry)
    for i, arg in enumerate(entry.args):
        for use in arg.uses if is_on_host(arg.type) else ():
            if not isinstance(use.operation, FetchOp):
                raise DistIRError(
                    f"{describe(use.operation)} takes argument {i} of the program from the "
                    f"host's memory, where only train.fetch in @{entry.sym_name.data} may; fetch "
                    f"it there"
                )
    found: dict[SSAValue, SSAValue] = {}
    for i, value in enumerate(end.operands):
        if not is_on_host(value.type):
            continue
        argument = entry.args[updated[i]] if i in updated else None
        if (
            argument is None
            or argument.type != value.type
            or not isinstance(value.owner, OffloadOp)
            or any(
                not use.operation.is_before_in_block(value.owner)
                for use in argument.uses
            )
            or len(list(value.uses)) > 1
        ):
            raise DistIRError(
                f"result {i} of the program is in the host's memory, but is not what train.offload "
                f"makes of the new value of an argument there that nothing takes behind it; "
                f"return a value of the device"
            )
        found[value] = argument
    return found


def _replace(copies: Sequence[Operation], targets: Mapping[SSAValue, SSAValue]) -> None:
    stored = [targets[op.results[0]] for op in copies if isinstance(op, OffloadOp)]
    new = StateCopiesOp(copies, stored)
    Rewriter.insert_op(new, InsertPoint.before(copies[0]))
    for result, op in zip(new.outputs, copies, strict=True):
        result.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(result)
    for op in copies:
        Rewriter.erase_op(op)
