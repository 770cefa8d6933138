"""Derives the stages of a pipeline, as paths of PyTorch modules, from a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.func import CallOp
from xdsl.ir import Operation

from distir.dialects.dist import SendOp, layout_of
from distir.errors import DistIRError
from distir.exports.walk import ProgramRun, block_of
from distir.sharding.mesh import Mesh


@dataclass(frozen=True)
class PipelineStages:
    """
    The stages of a pipeline.

    - `modules`: for each stage, the paths of its modules in forward order. Every stage
      except the first begins with a layer of the model. Every stage except the last
      ends with a layer;
    - `ranks`: for each stage, the pipeline rank that runs it;
    - `schedule`: the name of the PyTorch schedule class whose order is nearest to the
      program's order;
    - `splits_backward`: whether the program computes the gradients of parameters
      separately although `schedule` does not.
    """

    modules: tuple[tuple[str, ...], ...]
    ranks: tuple[int, ...]
    schedule: str
    splits_backward: bool = False


def pipeline_stages(
    run: ProgramRun,
    owners: Mapping[int, str],
    meshes: Sequence[Mesh],
    tied: Sequence[tuple[str, str]],
) -> PipelineStages:
    """
    Returns the pipeline stages of a program whose pipeline ranks have one mesh each.
    `meshes` are the meshes in the order of pipeline ranks. `owners` maps the index of
    each parameter to the path of its module. `tied` lists pairs of modules that share a
    parameter. Raises DistIRError if whole modules cannot follow the program's division
    into stages.
    """
    calls: dict[Operation, dict[str, None]] = {}
    places: dict[Operation, str] = {}
    for step in run.steps:
        if not step.forward or not isinstance(step.entered, CallOp):
            continue
        for value in step.operands:
            if value.view is not None and value.view.index in owners and step.scope:
                unit = block_of(step.scope) or step.scope
                calls.setdefault(step.entered, {})[unit] = None
                layout = value.layout
                assert layout is not None
                places[step.entered] = layout.mesh
    order = [mesh.name for mesh in meshes]
    modules = [tuple(_outermost(units)) for units in calls.values()]
    _check_division(modules, tied)
    for call in list(calls)[1:]:
        _check_arrival(call, list(calls))
    ranks = tuple(order.index(places[call]) for call in calls)
    return PipelineStages(tuple(modules), ranks, *_schedule(run, list(calls), ranks))


def _outermost(units: Mapping[str, None]) -> list[str]:
    """Returns the paths in `units` that are not inside another path in `units`."""
    return [u for u in units if not any(u.startswith(f"{other}.") for other in units)]


def _check_division(
    modules: Sequence[Sequence[str]], tied: Sequence[tuple[str, str]]
) -> None:
    """
    Raises DistIRError if the stages cannot be sequences of whole layers. Two stages
    must not compute in the same module. A stage must begin and end with elements of a
    list of layers, except at the ends of the model. Two modules in `tied` must be on
    the same stage.
    """
    known: dict[str, int] = {}
    for stage, own in enumerate(modules):
        for unit in own:
            for other, before in known.items():
                is_inside = f"{unit}.".startswith(f"{other}.")
                if before != stage and (is_inside or other.startswith(f"{unit}.")):
                    raise DistIRError(
                        f"export --to dtensor: stages {before} and {stage} of the pipeline "
                        f"both compute in {unit}, but PyTorch's stages are made of whole "
                        f"layers; choose other --stages"
                    )
            known[unit] = stage
        ends = [own[0]] * (stage > 0) + [own[-1]] * (stage + 1 < len(modules))
        for unit in ends:
            if block_of(unit) != unit:
                raise DistIRError(
                    f"export --to dtensor: stage {stage} of the pipeline begins or ends "
                    f"with {unit}, which is no element of a list of layers; choose --stages "
                    f"that begin with layers"
                )
    for owner, other in tied:
        first, second = (_stage_of(name, known) for name in (owner, other))
        if first != second:
            raise DistIRError(
                f"export --to dtensor: {owner} and {other} share a parameter, but are in "
                f"stages {first} and {second} of the pipeline, where PyTorch would train "
                f"two of them; choose a plan with p=1, or a model without the tie"
            )


def _stage_of(module: str, known: Mapping[str, int]) -> int | None:
    for unit, stage in known.items():
        if f"{module}.".startswith(f"{unit}."):
            return stage
    return None


def _check_arrival(call: Operation, calls: Sequence[Operation]) -> None:
    """
    Raises DistIRError unless a stage takes exactly one value, from the preceding stage.
    `call` is the call of the stage. `calls` are the calls of all stages in forward
    order.
    """
    sent = [v.owner for v in call.operands if isinstance(v.owner, SendOp)]
    before = calls[calls.index(call) - 1]
    # Between stages on one rank nothing is sent.
    passed = [v for v in call.operands if v.owner is before]
    if len(sent) + len(passed) != 1 or any(s.source.owner is not before for s in sent):
        stage = calls.index(call)
        raise DistIRError(
            f"export --to dtensor: stage {stage} of the pipeline takes "
            f"{len(sent) + len(passed)} values from other stages (skip connections, or the "
            f"output of an encoder), where a stage that is written takes the output of the "
            f"layer before it; choose a plan with p=1"
        )


def _schedule(
    run: ProgramRun, calls: Sequence[Operation], ranks: Sequence[int]
) -> tuple[str, bool]:
    """
    Returns the name of the PyTorch schedule class that is nearest to the program's
    order, and whether the program splits its backward passes although this class does
    not.
    """
    first = _mesh_of(calls[0])
    kinds = [forward for forward, op in run.calls if _mesh_of(op) == first]
    # Without a split there are as many calls backwards as forwards.
    is_split = kinds.count(False) > 3 * kinds.count(True) // 2
    if len(ranks) > len(set(ranks)):
        if list(ranks) == [*sorted(set(ranks)), *sorted(set(ranks), reverse=True)]:
            return "ScheduleZBVZeroBubble", False
        if is_split:
            return "ScheduleInterleavedZeroBubble", False
        return "ScheduleInterleaved1F1B", False
    last = len(kinds) - 1 - kinds[::-1].index(True)
    return "ScheduleGPipe" if all(kinds[:last]) else "Schedule1F1B", is_split


def _mesh_of(call: Operation) -> str | None:
    layouts = filter(None, map(layout_of, call.results))
    return next((layout.mesh for layout in layouts), None)
