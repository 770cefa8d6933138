"""
Finds modules in training mode whose calls differ from each other, or that update
buffers. A program computes the same in every call, and updates only the buffers of
batch normalisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distir.errors import DistIRError
from distir.frontends.torch.modules.python import Assignments, BufferWrites
from distir.frontends.torch.modules.runs import (
    Array,
    ModuleCall,
    called,
    comparable,
    difference,
)
from distir.frontends.torch.modules.state import training_norms
from distir.frontends.torch.trust import CONTROL_FLOW, MISMATCH, Trust, way_out

if TYPE_CHECKING:
    from torch import nn


def call_twice(module: nn.Module, call: ModuleCall, trust: Trust) -> list[Array]:
    """
    Calls a module twice in its current modes with the same inputs, and returns its
    results.

    Raises DistIRError if Python code counts the calls, if a buffer changes, or if the
    second call returns different results, unless the user accepts this.
    """
    assignments, writes = Assignments(module), BufferWrites(module)
    with comparable(module, training=True):
        before = {name: b.detach().clone() for name, b in module.named_buffers()}
        with assignments.recorded(), writes:
            first = called(module, call)
        with assignments.recorded():
            second = called(module, call)
        changed = [
            name
            for name, buffer in module.named_buffers()
            if name not in before or not _is_same(buffer, before[name])
        ]
    norms = tuple(f"{name}." for name in training_norms(module))
    changed = [name for name in changed if not name.startswith(norms or ("\n",))]
    kind = type(module).__name__
    counted = [name for name, times in assignments.changes.items() if times > 1]
    if counted and CONTROL_FLOW not in trust.allow:
        name = counted[0]
        raise DistIRError(
            f"{kind} changes its attribute {name!r} in each call, at "
            f"{assignments.lines[name]}, but Python runs once, when the module is imported: "
            f"the program has what it does in the first call. Pass such a number as an "
            f"input, {way_out(CONTROL_FLOW)}"
        )
    if MISMATCH in trust.allow:
        return first
    if changed:
        name = changed[0]
        line = writes.lines.get(name) or assignments.lines.get(name)
        raise DistIRError(
            f"{kind} updates its buffer {name!r} in training mode"
            f"{f', at {line}' if line else ''}, but its program has no updates besides those "
            f"of batch normalisation: the buffer would stay as it is. Update it in the "
            f"training script, {way_out(MISMATCH)}"
        )
    if not counted:
        for one, other in zip(first, second, strict=True):
            problem = difference(one, other)
            if problem is not None:
                raise DistIRError(
                    f"{kind} returns something else when it is called again on the same "
                    f"inputs: a result {problem}. Python runs once, when the module is "
                    f"imported, and the program does what it does in the first call; make "
                    f"it the same in each, {way_out(MISMATCH)}"
                )
    return first


def _is_same(now: torch.Tensor, before: torch.Tensor) -> bool:
    return now.shape == before.shape and torch.equal(
        now.nan_to_num() if now.is_floating_point() else now,
        before.nan_to_num() if before.is_floating_point() else before,
    )
