"""
Reports ops that devices cannot share because DistIR has no sharding rule for them.
"""

from __future__ import annotations

from collections import Counter

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, ReturnOp

from distir.dialects.dist import ConstrainOp
from distir.dialects.registries import READ_BY_IMPORT, name_of
from distir.dialects.tensors import rank_of
from distir.program import reachable_functions
from distir.sharding.rule import sharding_rule

_SHOWN = 6


def unruled_ops(module: ModuleOp) -> list[str]:
    """
    Returns a list with one note, which names the ops of a sequential program without a
    sharding rule. Every device does the whole work of these ops. The list is empty if
    every op that takes a tensor has a rule.
    """
    found: Counter[str] = Counter()
    count = 0
    for function in reachable_functions(module):
        for op in function.body.block.ops:
            if isinstance(op, CallOp | ReturnOp | ConstrainOp):
                continue
            if not any(rank_of(value.type) for value in op.operands):
                continue  # a constant, or computed from numbers
            count += 1
            if sharding_rule.of(op) is None:
                found[name_of(op)] += 1
    if not found:
        return []
    names = [f"{times} {name}" for name, times in found.most_common(_SHOWN)]
    more = f" and {len(found) - _SHOWN} other kinds" if len(found) > _SHOWN else ""
    is_importable = any(name.partition(".")[0] in READ_BY_IMPORT for name in found)
    advice = (
        "`distir import` reads such a program"
        if is_importable
        else "`distir.extension.register_op` adds a rule"
    )
    return [
        f"{found.total()} of {count} ops have no sharding rule, so that every device computes "
        f"them whole: {', '.join(names)}{more}; {advice}"
    ]
