"""The layouts that a search chose, and how a program gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp, UnitAttr

from distir.dialects.dist_attributes import SEPARATE_COPIES
from distir.planning.axes.sharding_plan import propagate_sharding
from distir.planning.distribution.batches import split_batch
from distir.planning.graph.annotate import annotate, settled
from distir.planning.graph.written_plan import WrittenPlan
from distir.planning.layouts.argument_requests import requests_of, split_over_time
from distir.sharding.mesh import Mesh


@dataclass(frozen=True)
class ChosenLayouts:
    """
    The layouts of a program on a mesh, without the program.

    The last of `steps` holds the layouts of all ops and arguments. Those before it are the
    plans for which the program was changed until it had these ops: where the first axes
    treated calls of one function differently, it got copies, and decompositions took the
    place of some ops.

    - `limited`: whether the fastest layouts need more memory than was allowed;
    - `separate`: whether each use of a value brings it to its layout for itself, as no copy
      may be kept for later ones;
    - `without_sends`: where sends between the stages of one pipeline counted, the layouts
      for any pipeline, which were found before.
    """

    steps: tuple[WrittenPlan, ...]
    limited: bool = False
    separate: bool = False
    without_sends: ChosenLayouts | None = None

    @property
    def for_any_pipeline(self) -> ChosenLayouts:
        """The layouts that were chosen while sends between stages did not count."""
        return self.without_sends or self

    def to_json(self) -> dict[str, Any]:
        """Returns the layouts as JSON data, without those for any pipeline."""
        return {
            "limited": self.limited,
            "separate": self.separate,
            "steps": [step.to_json() for step in self.steps],
        }

    @staticmethod
    def from_json(data: Any) -> ChosenLayouts:
        """
        Restores the layouts from what `to_json` gave. Raises KeyError, TypeError,
        ValueError or ParseError for other data.
        """
        limited, separate = data["limited"], data["separate"]
        if type(limited) is not bool or type(separate) is not bool:
            raise TypeError(f"{limited!r} and {separate!r} are no truth values")
        steps = tuple(map(WrittenPlan.from_json, data["steps"]))
        if not steps:
            raise ValueError("there are no layouts")
        return ChosenLayouts(steps, limited, separate)


def apply_layouts(module: ModuleOp, mesh: Mesh, layouts: ChosenLayouts) -> None:
    """
    Annotates a sequential program with layouts that were chosen for it before; nothing is
    chosen again. Raises DistIRError for a program with other ops.
    """
    if layouts.separate:
        module.attributes[SEPARATE_COPIES] = UnitAttr()
    *before, last = layouts.steps
    for step in before:
        settled(module, step.on(module, mesh))
    annotate(module, last.on(module, mesh))


def follow_requests(
    module: ModuleOp, mesh: Mesh, batch: Sequence[str] = ()
) -> ChosenLayouts:
    """
    Annotates a sequential program with layouts without a search, and returns them:
    arguments are split as is asked for, inputs and labels that hold the batch over the axes
    of `batch` too, and the rest follows. Raises DistIRError.
    """
    if mesh.has_time:
        split_over_time(module, mesh, requests_of(module))
    for axis in batch:
        split_batch(module, axis)
    return ChosenLayouts(propagate_sharding(module, mesh))
