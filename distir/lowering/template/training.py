"""Trains: runs a program step after step, results becoming arguments of the next one."""

from dataclasses import dataclass, field, replace

import torch

from . import checkpoints, initial, runtime
from .settings import StepSettings


@dataclass(frozen=True)
class Options:
    """
    - `steps`: the number of the last step; the first one is 1.
    - `seed`: of parameters that no file holds.
    - `folder`: where checkpoints are, `save_every`: steps from one to the next (0: one
      after the last step), `resume`: go on from the checkpoint of that step or from the
      `latest` one.
    - `settings`: learning rates, step by step.
    """

    steps: int
    seed: int = 0
    folder: str = ""
    save_every: int = 0
    resume: str = ""
    settings: StepSettings = field(default_factory=StepSettings)


def train(program, backend, sources, options, timeout_s=600.0, init_method="env://"):
    """
    Runs this process's part of the training: on rank 0 the results that update nothing
    (scalars: one number a step that was run) and the final weights, by name.

    Inputs and labels have the program's shape, or one dimension more in front: then step
    s gets row s - 1, starting over after the last row.
    """
    _check_settings(program, options.settings)
    with runtime.processes(program, backend, timeout_s, init_method) as process:
        rank, device, _ = process
        held, first = _start(program, sources, options, rank, device)
        saved = first - 1
        batches = {
            spec.name: runtime.found(spec, sources)
            for spec in _arguments(program, rank)
            if spec.role in ("input", "label")
        }
        history = {}
        for step in range(first, options.steps + 1):
            reported = _step(program, process, held, batches, step, options)
            for name, value in reported.items():
                history.setdefault(name, []).append(value)
            text = ", ".join(
                f"{name} {value.item():.9g}"
                for name, value in reported.items()
                if value.numel() == 1
            )
            runtime.report(f"step {step} of {options.steps}: {text}")
            last = step == options.steps
            due = options.save_every and step % options.save_every == 0
            if options.folder and (last or due):
                _save(program, options, step, saved, held, rank)
                saved = step
        whole = {
            name: torch.stack(values) if values[-1].ndim == 0 else values[-1]
            for name, values in history.items()
        }
        return whole | _final_weights(program, held, sources, rank)


def _check_settings(program, wanted):
    """Refuses learning rates for a program that takes none."""
    known = {spec.setting for spec in program.ARGUMENTS}
    if wanted.changes() and "learning_rate" not in known:
        raise runtime.ProgramError(
            "the program has no learning rate that could be set: its optimizer is not one "
            "of DistIR's; make the training step with `distir build --training` or `distir "
            "import --training`"
        )


def _arguments(program, rank):
    own = program.RANKS[rank].program
    return [program.ARGUMENTS[i] for i in own.arguments]


def _start(program, sources, options, rank, device):
    """The arguments to start with, but for inputs and labels, and the first step."""
    checkpoint, first = None, 1
    if options.resume:
        checkpoint = checkpoints.Checkpoint(
            options.folder, options.resume, rank, len(program.RANKS)
        )
        first = checkpoint.step + 1
        runtime.report(f"going on from the checkpoint of step {checkpoint.step}")
        if first > options.steps:
            raise runtime.ProgramError(
                f"the checkpoint is of step {checkpoint.step} already, so that nothing "
                f"is left to do up to step {options.steps}; ask for more steps"
            )
    elif options.folder and (known := checkpoints.steps_in(options.folder)):
        raise runtime.ProgramError(
            f"{options.folder} has checkpoints already (the last one of step "
            f"{known[-1]}); go on from there with --resume, or choose another folder"
        )
    runtime.report("loading arguments")
    held = {}
    for spec in _arguments(program, rank):
        mesh = program.MESHES.get(spec.mesh)
        if spec.role in ("input", "label", "setting"):
            continue
        if checkpoint is not None and spec.role in ("parameter", "state"):
            value = checkpoint.part(spec, mesh, rank)
        elif any(runtime.holds(spec, source) for source in sources):
            value = runtime.argument(spec, mesh, rank, sources)
        else:
            value = _new(spec, program, mesh, rank, sources, options.seed)
        held[spec.name] = value.to(device)
    return held, first


def _new(spec, program, mesh, rank, sources, seed):
    """The first value of an argument that no file holds."""
    if spec.role == "parameter":
        return initial.parameter(spec, mesh, rank, seed)
    if spec.role != "state":
        return runtime.argument(spec, mesh, rank, sources)  # says what is missing
    if spec.initial != "copy":
        return torch.zeros(runtime.local_shape(spec, mesh), dtype=spec.dtype)
    # A copy of a parameter in higher precision, perhaps split otherwise.
    copied = next(a for a in program.ARGUMENTS if a.name == spec.of)
    named = replace(
        spec, name=copied.name, initial=copied.initial, repacked=copied.repacked
    )
    for source in sources:
        if runtime.holds(copied, source):
            # Steps overwrite both.
            value = runtime.found(copied, [source]).to(spec.dtype, copy=True)
            return runtime.argument(named, mesh, rank, [{copied.name: value}])
    value = initial.parameter(replace(named, dtype=copied.dtype), mesh, rank, seed)
    return value.to(spec.dtype)


def _step(program, process, held, batches, step, options):
    """Runs a step and replaces what it updates; gives the other results, on rank 0."""
    rank, device, body = process
    own = program.RANKS[rank].program
    arguments = []
    for spec in _arguments(program, rank):
        if spec.name in held:
            arguments.append(held[spec.name])
            continue
        if spec.default is not None:
            arguments.append(options.settings.at(step, spec))
            continue
        batch = batches[spec.name]
        if batch.ndim == len(spec.shape) + 1:
            batch = batch[(step - 1) % len(batch)]
        mesh = program.MESHES.get(spec.mesh)
        source = {spec.name: batch}
        arguments.append(runtime.argument(spec, mesh, rank, [source]).to(device))
    results = runtime.results_of(body, arguments)
    del arguments
    reported = {}
    specs = dict(enumerate(program.RESULTS))
    for index, value in zip(own.results, results, strict=True):
        spec = specs[index]
        if spec.updates:
            held[spec.updates] = value
        else:
            reported[index] = value
    kept = {i: spec for i, spec in specs.items() if not spec.updates}
    return runtime.collect(kept, reported, program.MESHES, rank)


def _save(program, options, step, previous, held, rank):
    kept = {
        spec.name: (spec, held[spec.name])
        for spec in _arguments(program, rank)
        if spec.role in ("parameter", "state")
    }
    processes = len(program.RANKS)
    checkpoints.save(
        options.folder, step, previous, kept, program.MESHES, rank, processes
    )
    runtime.report(f"saved {checkpoints.folder_of(options.folder, step)}")


def _final_weights(program, held, sources, rank):
    """
    Every parameter, and what else of the given weights the steps update (running
    statistics), whole, on rank 0.
    """
    runtime.report("gathering parameters")
    specs = {
        i: spec
        for i, spec in enumerate(program.ARGUMENTS)
        if spec.role == "parameter"
        or (
            spec.role == "state"
            and any(runtime.holds(spec, source) for source in sources)
        )
    }
    own = {i: held[spec.name] for i, spec in specs.items() if spec.name in held}
    return runtime.collect(specs, own, program.MESHES, rank)
