"""
`distir.import_model`, `build`, `distribute` and `schedule`: the functions that make
programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from distir.errors import DistIRError
from distir.facade.model_program import ModelProgram
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import (
    BuildOptions,
    DistributeOptions,
    ImportOptions,
    SchedulingOptions,
)

if TYPE_CHECKING:
    import torch

    from distir.planning.plans.saved_plan import SavedPlan
    from distir.tools.schedule_verification import ScheduleCheck
    from distir.tools.tuning import TunedSchedule

_NOWHERE = ("-o", "-")
"""The output option of a command, for functions that write no file."""


def import_model(
    model: torch.nn.Module | str | Path,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[ImportOptions],
) -> ModelProgram:
    """
    Imports an ONNX file or a PyTorch module, and returns a sequential program.

    `args` and `kwargs` are example inputs of the global batch; they are for modules
    only. `options` are those of `distir import`: `training`, `loss`, `optimizer`,
    `frozen`, ... A module is imported in evaluation mode. With `training`, each of its
    submodules is imported in its own mode. The program of a module is compared with the
    module, unless `check=False`; `allow` names the differences that are accepted.
    Raises DistIRError if the model cannot be imported or differs from its program.
    """
    from distir.tools.commands.import_model import prepare, prepared_model

    if isinstance(model, str | Path):
        if args is not None or kwargs is not None:
            raise DistIRError(
                f"distir.import_model: {model} has its inputs already; example inputs "
                f"are for a module"
            )
        given = command_options("import", "import_model", [model, *_NOWHERE], options)
        made = prepared_model(given)
        return ModelProgram(made.module, arrays=made.weights)
    from torch import nn

    from distir.frontends.torch.importer import import_torch
    from distir.planning.annotations import add_notes

    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DistIRError(
            f"distir.import_model: a {type(model).__name__} is no model; give a module "
            f"of PyTorch or the path of an ONNX file"
        )
    if args is None and kwargs is None:
        raise DistIRError(
            "distir.import_model: a module needs example inputs; give args=(...)"
        )
    name = type(model).__name__
    given = command_options("import", "import_model", [name, *_NOWHERE], options)
    if given.dim:
        raise DistIRError(
            "distir.import_model: dim is for files; the inputs of a module have sizes"
        )
    made = import_torch(
        model,
        tuple(args or ()),
        dict(kwargs or {}),
        training=given.training or given.training_mode,
        trainable=given.trainable,
        frozen=given.frozen,
        capacity_factor=given.capacity_factor,
        equal_features=given.equal_features,
        check=not given.no_check,
        allow=given.allow,
    )
    add_notes(made.module, made.notes)
    prepare(made, given)
    return ModelProgram(made.module, arrays=made.weights)


def build(model: str, **options: Unpack[BuildOptions]) -> ModelProgram:
    """
    Builds a model of any size, without weights, such as `gpt`, `llama` or `unet`, with
    the options of the command `distir build`. Raises DistIRError if an option is
    invalid.
    """
    from distir.tools.commands.build import built

    words = [model, *_NOWHERE]
    return ModelProgram(built(command_options("build", "build", words, options)))


def distribute(
    program: ModelProgram | str | Path,
    *,
    plan: SavedPlan | str | Path | None = None,
    **options: Unpack[DistributeOptions],
) -> ModelProgram:
    """
    Returns a program distributed over a cluster, with the options of the command
    `distir distribute`, or by the `plan` that `distir.search` found for the program.
    `program` itself is not changed. The `notes` of the result name the parts of the
    program that could not be split. Raises DistIRError for options that contradict each
    other or do not suit the program.
    """
    from distir.planning.plans.saved_plan import SavedPlan
    from distir.program.entries import chosen_entry
    from distir.tools.arguments.distribution import distribute_as_asked

    source = ModelProgram.of(program)
    module = source.module.clone()
    if plan is not None:
        if options:
            raise DistIRError(
                f"distir.distribute: the plan says how to distribute, so that "
                f"{', '.join(options)} cannot be given beside plan="
            )
        found = plan if isinstance(plan, SavedPlan) else SavedPlan.load(plan)
        found.distribute(module, source.name)
    else:
        if "cluster" not in options:
            raise DistIRError(
                "distir.distribute needs cluster=, what to distribute over, or plan=, "
                "what distir.search found"
            )
        words = [source.name, *_NOWHERE]
        given = command_options("distribute", "distribute", words, options)
        if given.entry is not None:
            module = chosen_entry(module, given.entry)
        distribute_as_asked(module, given)
    return source.with_module(module)


@dataclass(frozen=True, eq=False)
class ScheduledProgram(ModelProgram):
    """
    A program with a schedule. With the option `verify`, `check` holds the comparisons
    of kernels and outputs. With the option `tune`, `tuned` holds the results of all
    combinations of knob values and plans that were tried, and the program is that of
    the best combination, `tuned.best`.
    """

    check: ScheduleCheck | None = None
    tuned: TunedSchedule | None = None


def schedule(
    program: ModelProgram | str | Path,
    script: str | Path,
    *,
    set: Mapping[str, Any] | None = None,
    also: Sequence[ModelProgram | str | Path] = (),
    **options: Unpack[SchedulingOptions],
) -> ScheduledProgram:
    """
    Returns a program rewritten by the schedule in `script`, with the options of the
    command `distir schedule`. `program` itself is not changed.

    `set` gives values for the schedule's knobs (its tunable parameters), by name. With
    `verify=True`, each kernel and the whole program are compared with the original.
    `tune`, such as `"exhaustive"`, `["descent", 50]` or `["measure", 4]`, searches the
    values of the knobs together with a grid of plans on `cluster`. The search also
    tries the programs in `also`, which are the same model with other batch sizes.
    `training` and its options turn the result into a training step. Raises DistIRError
    if the schedule cannot be applied or changes the results of the program.
    """
    from distir.tools.commands.schedule import (
        add_step,
        check_schedule_arguments,
        scheduled,
    )

    sources = [ModelProgram.of(program), *map(ModelProgram.of, also)]
    words = [sources[0].name, script, *_NOWHERE]
    given = command_options(
        "schedule", "schedule", words, {**options, "set": dict(set or {})}
    )
    check_schedule_arguments(given)
    if len(sources) > 1 and given.tune is None:
        raise DistIRError("distir.schedule: also is of use with tune only; add it")
    modules = [source.module.clone() for source in sources]
    found = scheduled(modules, given, lambda _: sources[0].weights)
    add_step(found.module, given)
    source = sources[found.place]
    return ScheduledProgram(
        found.module, source.source, source.arrays, found.check, found.tuned
    )
