"""The layouts that a search chose, and functions that annotate a program with them."""

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
    The layouts that were chosen for a program on a mesh. The program itself is not
    stored.

    - `steps`: written plans. The last one holds the layouts of all ops and arguments.
      Each earlier plan records a change of the program: functions were copied because
      the first axes treat their calls differently, and some ops were replaced by their
      decompositions. The program is changed in the same way again before the last plan
      applies;
    - `limited`: whether the fastest layouts need more memory than was allowed;
    - `separate`: whether each use of a value makes its own copy in its layout, because
      there is no memory to keep a copy for later uses;
    - `without_sends`: if the layouts were chosen with the costs of sends between the
      stages of one pipeline, the layouts that were found without these costs.
    """

    steps: tuple[WrittenPlan, ...]
    limited: bool = False
    separate: bool = False
    without_sends: ChosenLayouts | None = None

    @property
    def for_any_pipeline(self) -> ChosenLayouts:
        """
        The layouts that were chosen without the costs of sends between stages. These
        layouts suit every pipeline.
        """
        return self.without_sends or self

    def to_json(self) -> dict[str, Any]:
        """
        Returns the layouts as JSON data, for `from_json`. The field `without_sends` is
        left out.
        """
        return {
            "limited": self.limited,
            "separate": self.separate,
            "steps": [step.to_json() for step in self.steps],
        }

    @staticmethod
    def from_json(data: Any) -> ChosenLayouts:
        """
        Restores the layouts from the JSON data that `to_json` returned. Raises
        KeyError, TypeError, ValueError or ParseError if `data` is not such data.
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
    Annotates a sequential program with `layouts`, which an earlier search chose for the
    program; nothing is searched. Raises DistIRError if the layouts were chosen for a
    program with different ops.
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
    Annotates a sequential program with layouts that follow from the requests of the
    user, without a search, and returns the layouts. Arguments get their requested
    layouts, and inputs and labels with the batch are also split over the axes `batch`.
    The layouts of all other values are propagated from these. Raises DistIRError if the
    requests are invalid.
    """
    if mesh.has_time:
        split_over_time(module, mesh, requests_of(module))
    for axis in batch:
        split_batch(module, axis)
    return ChosenLayouts(propagate_sharding(module, mesh))
