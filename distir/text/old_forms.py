"""Converts programs that older versions of DistIR wrote to the current form."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.distributed import InDistributedForm
from distir.dialects.collective_ops.rank_form import RANK_OPS
from distir.dialects.dist import layout_of

_PROPERTIES = ("group", "reduction", "dim", "run", "split_dim", "split_run", "root")


def bring_up_to_date(module: ModuleOp) -> None:
    """
    Renames collectives in the program of a single rank from an older version of DistIR:
    `collective.all_reduce` with a `group`, and with types without layouts, becomes
    `collective.rank.all_reduce`.
    """
    for op in list(module.walk()):
        if isinstance(op, InDistributedForm) and _is_of_one_rank(op):
            _replace(op)


def _is_of_one_rank(op: InDistributedForm) -> bool:
    has_group = "group" in op.attributes or "group" in op.properties
    return has_group and not any(map(layout_of, (op.source, op.result)))


def _replace(op: InDistributedForm) -> None:
    attributes = dict(op.attributes)
    moved = {n: attributes.pop(n) for n in _PROPERTIES if n in attributes}
    new: Operation = RANK_OPS[op.kind].create(
        operands=op.operands,
        result_types=op.result_types,
        properties={**op.properties, **moved},
        attributes=attributes,
    )
    new.location = op.location
    new.results[0].name_hint = op.result.name_hint
    Rewriter.insert_op(new, InsertPoint.before(op))
    op.result.replace_all_uses_with(new.results[0])
    Rewriter.erase_op(op)
