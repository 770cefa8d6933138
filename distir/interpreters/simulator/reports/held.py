"""Bytes in memory at a peak, with their kind and origin."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from distir.interpreters.simulator.engine.compiled import CallStep


@dataclass(frozen=True)
class Held:
    """
    Memory of a value (None: of an op's workspace, or of libraries) that is alive at the
    peak of a group of devices: `size` bytes on each. `scope` is the module of the source
    model; `calls` lead to the call that made it, if that has returned.
    """

    value: SSAValue | None
    kind: str
    name: str
    scope: str
    size: int
    calls: tuple[CallStep, ...] = ()
