"""Compares two plans module by module of the source model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import Layout
from distir.dialects.tensors import rank_of
from distir.interpreters.simulator import TimeReport, simulate
from distir.interpreters.simulator.engine.scopes import pattern
from distir.interpreters.simulator.profiles.profile import Profile
from distir.interpreters.simulator.reports.time_report import TICKS_PER_SECOND
from distir.program import Program


@dataclass
class ScopeCost:
    """
    The costs of one module of the model, summed over all layers.

    - `layouts`: the layouts of the module's parameters, as text; `weight[-, t]` means
      that the second dimension is split over axis t;
    - `compute_s`: the seconds per step in which the busiest devices compute for the
      module;
    - `communication_s`: the seconds per step in which the busiest devices communicate
      for the module without computing at the same time.
    """

    layouts: tuple[str, ...] = ()
    compute_s: float = 0.0
    communication_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The sum of the seconds of computation and of exposed communication."""
        return self.compute_s + self.communication_s


def by_scope(module: ModuleOp, profiles: Sequence[Profile]) -> dict[str, ScopeCost]:
    """
    Simulates a distributed program and returns the costs of each module of the model,
    by the module's path. Raises DistIRError if the program cannot be simulated.
    """
    found: dict[str, ScopeCost] = {}
    for scope, layout in _layouts(module):
        cost = found.setdefault(scope, ScopeCost())
        if layout not in cost.layouts:
            cost.layouts += (layout,)
    report = TimeReport.of(simulate(module, profiles=profiles))
    for cause, spent in report.busiest.spent.items():
        cost = found.setdefault(cause.scope, ScopeCost())
        cost.compute_s += spent.compute / TICKS_PER_SECOND
        cost.communication_s += spent.exposed_communication / TICKS_PER_SECOND
    return found


def _layouts(module: ModuleOp) -> list[tuple[str, str]]:
    """Returns the module path and the layout, as text, of each parameter."""
    found: list[tuple[str, str]] = []
    for argument in Program(module).arguments:
        layout = argument.layout
        if argument.role == "parameter" and layout is not None:
            scope, _, leaf = argument.name.rpartition(".")
            shown = _shown(layout, rank_of(argument.type))
            found.append((pattern(scope), f"{leaf}[{shown}]"))
    return found


def _shown(layout: Layout, rank: int) -> str:
    return ", ".join(
        "x".join(shard.axis for shard in layout.dim(dim)) or "-" for dim in range(rank)
    )
