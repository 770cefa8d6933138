"""
Converts between the settings of a run and a saved plan, so that a plan file holds each
degree only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from distir.errors import DistIRError
from distir.exports.systems.settings import MODEL, PRECISION, RunSettings, chosen
from distir.exports.systems.system import Read
from distir.planning.plans.plan import GridPlan, LayoutPlan
from distir.planning.plans.saved_plan import SavedPlan

_OF_PLAN = (
    *("batch", "t", "p", "c", "e", "r", "zero", "context", "schedule", "chunks"),
    *("checkpoint", "no_sync", "offload_states", "expert_axes"),
)
"""The settings that `GridPlan` has under the same names."""


def grid_plan(settings: RunSettings) -> GridPlan:
    """Returns the grid plan of a run, in the form that `distir distribute` takes."""
    s = settings
    stages = "uniform" if s.p > 1 and not s.layers % (s.p * max(s.chunks, 1)) else ""
    own = chosen(s, _OF_PLAN)
    if s.c == 1:
        own["context"] = "gather"
    return GridPlan(
        **own,
        d=s.d,
        k=s.k,
        stages=stages,
        overlap=bool(s.overlap) and s.devices > 1,
        sequence_parallel=s.sequence_parallel and s.t > 1,
        keep_gathered=s.keep_gathered and s.sequence_parallel and s.t > 1,
    )


def run_data(read: Read, system: str) -> dict[str, Any]:
    """
    Returns the description of a run that a plan file holds in addition to the plan: the
    model's configuration, the precision, and the system's options that have no setting
    in DistIR.
    """
    settings = read.settings
    return {
        "system": system,
        "model": chosen(settings, MODEL),
        "precision": chosen(settings, PRECISION),
        "overlap": settings.overlap,
        "sequence_parallel": settings.sequence_parallel,
        "keep_gathered": settings.keep_gathered,
        "per_node": settings.per_node,
        "launch": read.launch,
        "kept": read.kept,
        "said": read.said,
    }


def settings_of(plan: SavedPlan, what: str, model: Mapping[str, Any]) -> RunSettings:
    """
    Returns the settings of a saved plan. `model` has the model's settings from the
    user, for plans without them. Raises DistIRError, which names the plan by `what`,
    for a plan that training systems cannot run: a plan of searched layouts, a plan for
    inference, a plan without a model, or a damaged plan.
    """
    own = plan.result.plan
    if isinstance(own, LayoutPlan):
        raise DistIRError(
            f"{what} has layouts that were searched over {own}, which no training system "
            f"can be told; use --to dtensor, or search without --auto"
        )
    assert isinstance(own, GridPlan)
    if not plan.trains:
        raise DistIRError(f"{what} is a plan for inference, but these systems train")
    run = plan.run or {}
    try:
        known = {**run.get("model", {}), **run.get("precision", {}), **model}
        settings = replace(RunSettings(), **{**_of_arguments(plan), **known})
        settings = replace(
            settings,
            **chosen_of(own),
            devices=own.devices,
            per_node=run.get("per_node", 0),
            overlap=own.overlap_kinds
            or ((run.get("overlap") or "dp,params") if own.overlap else ""),
            sequence_parallel=own.sequence_parallel
            or (own.t == 1 and run.get("sequence_parallel", False)),
            keep_gathered=own.keep_gathered
            or (not own.sequence_parallel and run.get("keep_gathered", False)),
        )
    except (TypeError, AttributeError) as error:
        raise DistIRError(f"{what} is damaged: {error}") from error
    parts = own.batch_parts * own.k
    if own.batch % parts:
        raise DistIRError(
            f"{what}: a batch of {own.batch} cannot be divided into {own.k} micro-batches "
            f"on {own.batch_parts} data-parallel devices; change batch, k or a degree"
        )
    settings = replace(settings, micro_batch=own.batch // parts)
    if not settings.layers:
        raise DistIRError(
            f"{what} does not hold the model's configuration, as plans of `distir plan` "
            f"do; add --config with the model's config.json of Hugging Face"
        )
    settings = settings.completed()
    settings.check(what)
    return settings


def chosen_of(plan: GridPlan) -> dict[str, Any]:
    """Returns the settings that a grid plan determines, by name."""
    return {name: getattr(plan, name) for name in _OF_PLAN}


def _of_arguments(plan: SavedPlan) -> dict[str, Any]:
    """
    Returns the settings that follow from the types of a program's arguments: the
    sequence length, and the type of the parameters.
    """
    found: dict[str, Any] = {"seq": 0}
    for argument in plan.arguments:
        inner = argument.type.partition("<")[2].rstrip(">").split("x")
        if argument.role == "input" and inner[-1] == "i64" and len(inner) == 3:
            found["seq"] = int(inner[1])
        if argument.role == "parameter" and inner[-1] in ("f32", "bf16", "f16"):
            found.setdefault("dtype", inner[-1])
    return found
