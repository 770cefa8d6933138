"""Marks modules of PyTorch as opaque before the import, as a schedule requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.transform import NamedSequenceOp
from xdsl.ir import SSAValue

from distir.dialects.schedule import MatchOp, OpaqueModulesOp
from distir.errors import DistIRError, listed
from distir.planning.modules import matches
from distir.scheduling.run import origin
from distir.scheduling.script import parse_script

if TYPE_CHECKING:
    import torch


def mark_scheduled(module: torch.nn.Module, script: str) -> None:
    """
    Marks the modules that the schedule `script` (in IR form) declares opaque. Handles
    of such modules must come from `schedule.match`. Raises DistIRError if no module
    matches, or if a declaration does not fit its module.
    """
    for sequence in parse_script(script, "schedule"):
        _mark(module, sequence)


def _mark(module: torch.nn.Module, sequence: NamedSequenceOp) -> None:
    from distir.frontends.torch.modules.opaque import opaque

    known: dict[SSAValue, list[str]] = {sequence.body.block.args[0]: [""]}
    names = [name for name, _ in module.named_modules() if name]
    for op in sequence.body.block.ops:
        if isinstance(op, MatchOp) and op.root in known:
            known[op.result] = [n for n in names if _is_in(op, n, known[op.root])]
        if not isinstance(op, OpaqueModulesOp):
            continue
        if op.modules not in known:
            raise DistIRError(
                f"{origin(op)}: opaque takes modules that are named by their paths, as the "
                f"model is imported before other lines of the schedule run"
            )
        if not known[op.modules]:
            some = listed([name for name in names if "." not in name], 8)
            raise DistIRError(
                f"{origin(op)}: no module matches; the model has {some or 'no modules'}"
            )
        weights = {} if op.weights is None else op.weights.data
        for name in known[op.modules]:
            try:
                opaque(
                    module.get_submodule(name),
                    op.rule.data,
                    keep="" if op.keep is None else op.keep.data,
                    weights={
                        n: dims.data
                        for n, dims in weights.items()
                        if isinstance(dims, StringAttr)
                    },
                    flops=None if op.flops is None else op.flops.data,
                    memory=None if op.memory is None else op.memory.data,
                )
            except DistIRError as error:
                raise DistIRError(f"{origin(op)}: {name!r}: {error}") from error


def _is_in(op: MatchOp, name: str, roots: list[str]) -> bool:
    """Whether `op` matches the module `name` inside one of the modules `roots`."""
    for root in roots:
        inside = name if not root else name.removeprefix(f"{root}.")
        if root and inside == name:
            continue
        if op.regex is not None:
            if re.fullmatch(op.pattern.data, inside):
                return True
        elif matches(op.pattern.data, inside):
            return True
    return False
