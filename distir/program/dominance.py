"""
Checks that values are defined before they are used. MLIR checks this of every program; xDSL
does not.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo

from distir.errors import DistIRError
from distir.program import describe


def check_dominance(module: ModuleOp) -> None:
    """
    Raises DistIRError, naming op and value, if an op of a function uses a value that no op
    before it defines: one defined by itself, by a later op, in another function or inside
    the region of another op.
    """
    for op in module.body.block.ops:
        if isinstance(op, FuncOp):
            _check(op.body, set(), op)


def _check(region: Region, outside: set[int], function: FuncOp) -> None:
    """
    Checks a region. `outside` are the values around the region that its ops may use, by
    their ids, as hashing values is slow.
    """
    blocks = list(region.blocks)
    order = DominanceInfo(region) if len(blocks) > 1 else None
    defined_in = {
        block: {*map(id, block.args), *(id(r) for op in block.ops for r in op.results)}
        for block in (blocks if order is not None else ())
    }
    for block in blocks:
        visible = outside.copy()
        if order is not None:
            for other in blocks:
                if other is not block and order.dominates(other, block):
                    visible |= defined_in[other]
        visible.update(map(id, block.args))
        for op in block.ops:
            for value in op.operands:
                if id(value) not in visible:
                    raise _undefined(op, value, function)
            for inner in op.regions:
                _check(inner, visible, function)
            visible.update(map(id, op.results))


def _undefined(op: Operation, value: SSAValue, function: FuncOp) -> DistIRError:
    hint = f"%{value.name_hint}" if value.name_hint else "a value"
    if value.owner is op:
        where = "its own result"
    elif isinstance(value.owner, Operation):
        where = f"the result of {describe(value.owner)}"
    else:
        where = "an argument of another block"
    return DistIRError(
        f"@{function.sym_name.data}: {describe(op)} uses {hint}, {where}, which no op "
        f"before it defines; put the op that defines a value in front of all that use it"
    )
