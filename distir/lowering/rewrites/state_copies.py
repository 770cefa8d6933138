"""
Copies of the optimizer's states between the host, where the program's arguments are, and the
device: one call for neighbouring ones, which stores states where they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import SCOPE
from distir.dialects.host import is_on_host
from distir.dialects.train_ops.offload import FetchOp, OffloadOp
from distir.errors import DistIRError
from distir.lowering.emitter import Call, torch_emitter
from distir.program import (
    describe,
    entry_function,
    return_op,
    updated_arguments,
)


@irdl_op_definition
class StateCopiesOp(IRDLOperation):
    """
    Copies of several arguments of the program to the device, or with `stores` of values into
    arguments, which are the second half of the operands then. Like `torch.call`, it is only
    written in memory, by this file.
    """

    name = "torch.state_copies"

    inputs = var_operand_def()
    outputs = var_result_def()
    stores = opt_prop_def(UnitAttr)

    def __init__(self, copies: Sequence[Operation], targets: Sequence[SSAValue]):
        super().__init__(
            operands=[[*(op.operands[0] for op in copies), *targets]],
            result_types=[[op.results[0].type for op in copies]],
            properties={"stores": UnitAttr() if targets else None},
        )
        if SCOPE in copies[0].attributes:
            self.attributes[SCOPE] = copies[0].attributes[SCOPE]

    @property
    def overwritten(self) -> dict[SSAValue, SSAValue]:
        """The results that are arguments of the program, overwritten, and these."""
        if self.stores is None:
            return {}
        targets = self.inputs[len(self.outputs) :]
        return dict(zip(self.outputs, targets, strict=True))


@torch_emitter("torch.state_copies")
def state_copies(call: Call) -> str:
    op = call.op
    assert isinstance(op, StateCopiesOp)
    helper, count = call.helper("offload"), len(op.outputs)
    values = [
        f"({', '.join(call.names.listed(list(own)))},)"
        for own in (op.inputs[:count], op.inputs[count:])
        if own
    ]
    if op.stores is not None:
        return f"{helper}.store({', '.join(values)})"
    written = f"{helper}.load({', '.join(values)})"
    return f"{written}[0]" if count == 1 else written


def fuse_state_copies(module: ModuleOp) -> None:
    """
    Fuses the copies of a per-rank program's arguments to the device, and those of values that
    update such arguments. Raises DistIRError for arguments and results in the host's memory
    that are used in another way.
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
    """Returns the results in the host's memory, with the arguments that they update."""
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
