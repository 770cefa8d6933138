"""`distir.search`: finds the best plan for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError, one_of
from distir.facade.model_program import ModelProgram
from distir.frontends.torch.trust import Trust
from distir.hardware import load_cluster
from distir.interpreters.simulator.profiles.files import ProfileChoice
from distir.planning.auto.auto import auto_search
from distir.planning.auto.results import nothing_found
from distir.planning.grid.results import nothing_fits
from distir.planning.grid.search import GridSearch
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.saved_plan import SavedPlan
from distir.planning.requests import Requests
from distir.solver.clock import Clock
from distir.tools.auto_search import explanation

if TYPE_CHECKING:
    import torch

    from distir.parallel.losses import Loss

_OPTIMIZER = "adamw"

_Value = TypeVar("_Value", int, str)
_Several: TypeAlias = _Value | Sequence[_Value]


def search(
    model: torch.nn.Module | ModelProgram | str | Path | Sequence[ModelProgram | str],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    cluster: str | Path,
    devices: int | None = None,
    loss: Loss = None,
    labels: Any = None,
    optimizer: str | None = _OPTIMIZER,
    auto: bool = False,
    world_size: int | None = None,
    degrees: Sequence[tuple[int, int, int]] = (),
    micro_batches: _Several[int] = (),
    zero: _Several[int] = (),
    checkpoint: _Several[str] = (),
    schedules: _Several[str] = (),
    c: _Several[int] = (),
    e: _Several[int] = (),
    r: _Several[int] = (),
    no_sync: _Several[str] = (),
    offload_states: _Several[str] = "off",
    overlap: _Several[str] = (),
    buckets: bool = True,
    profile: _Several[str] = (),
    shard: _Several[str] = (),
    whole: _Several[str] = (),
    time_limit: float | None = None,
    resume: str | Path | None = None,
    jobs: int = 0,
    measure: int = 0,
    backend: str = "gloo",
    check: bool = True,
    allow: Sequence[str] = (),
) -> SavedPlan:
    """
    Finds the fastest way to distribute a model that fits into the memory of a cluster,
    without needing a GPU.

    - `model`: a module, with `args` and `kwargs`, example inputs of the global batch; or a
      program of `import_model` or `build`, or its file; or several, one model for several
      sizes of the batch.
    - `cluster`, `devices`: a built-in cluster or the file of one, scaled to so many
      devices.
    - `loss`, `labels`, `optimizer`: for the training of a module, as in `parallelize` and
      `import_model`; with `optimizer=None` the plan is for inference. A program has its
      own.
    - `auto`: also searches layouts, stages and the other options, as `distir search
      --auto`; otherwise the plans of the grid are tried. `time_limit` (seconds), `shard`
      and `whole` only apply with it, `resume` (a file of results) only without it. Without a
      limit the search ends when no neighbour of the best plans is better, and solving for
      the layouts of one plan after 20 s.
    - `measure`: this many of the best plans are run on processes of this machine
      (`backend`: `gloo` for its cores, `nccl` for its GPUs), and the fastest of them is
      chosen.
    - `profile`: what the devices reach in practice; by default the profiles that the cluster
      names, and `none` for data sheets.
    - `offload_states`: `off` also with `auto`, as the optimizer of `parallelize` is yours.
    - `check`, `allow`: whether the program of a module is run beside it, and the differences
      that are accepted (see `import_torch`).
    - The other options are those of `distir search`.

    Raises DistIRError, also if nothing fits.
    """
    target = load_cluster(cluster, devices)
    options = SearchOptions(
        profile=ProfileChoice.of(_tuple(profile), target).names,
        world_size=world_size or devices,
        micro_batches=_tuple(micro_batches),
        zero=_tuple(zero),
        checkpoint=_tuple(checkpoint),
        schedules=_tuple(schedules),
        c=_tuple(c),
        e=_tuple(e),
        r=_tuple(r),
        no_sync=_tuple(no_sync),
        offload_states=_tuple(offload_states),
        overlap=_tuple(overlap),
        buckets=buckets,
        jobs=jobs,
    )
    options.check()
    requests = Requests(_tuple(shard), _tuple(whole))
    if auto and resume is not None:
        raise DistIRError("search: resume is of the grid search; leave out auto or it")
    if not auto and (requests != Requests() or time_limit is not None):
        raise DistIRError(
            "search: time_limit, shard and whole are of the search with auto=True; add that"
        )
    clock = Clock(time_limit)
    trust = Trust.of(check, allow)
    modules = _modules(model, args, kwargs, loss, labels, optimizer, trust)
    if auto:
        found = auto_search(
            modules,
            target,
            options,
            requests=requests,
            degrees=degrees,
            time_limit=None if time_limit is None else max(clock.left, 0.0),
        )
        found.run()
    else:
        found = GridSearch(modules, target, options, degrees)
        found.run(None if resume is None else Path(resume))
    if found.interrupted and (found.best is None or not auto):
        raise KeyboardInterrupt
    if found.best is None:
        results = sorted(found.results.values(), key=lambda r: r.plan)
        grid = isinstance(found, GridSearch)
        why = nothing_fits(results) if grid else nothing_found(found)
        raise DistIRError(f"search: {why}")
    if measure:
        from distir.launch.step_times import StepTiming
        from distir.launch.timing import BACKENDS
        from distir.tools.plan_runs import run_plans

        run_plans(found, measure, StepTiming(one_of("backend", backend, BACKENDS)))
    return SavedPlan.of(found, lambda: explanation(found))


def _tuple(given: _Several[_Value]) -> tuple[_Value, ...]:
    """Returns several values, or a single one, as a tuple."""
    if isinstance(given, int | str):
        return (cast(_Value, given),)
    return tuple(given)


def _modules(
    model: Any,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    loss: Loss,
    labels: Any,
    optimizer: str | None,
    trust: Trust,
) -> list[ModuleOp]:
    """Returns the sequential programs to search plans for. Raises DistIRError."""
    several = model if isinstance(model, list | tuple) else [model]
    if all(isinstance(one, ModelProgram | str | Path) for one in several):
        given = {"args": args, "kwargs": kwargs, "loss": loss, "labels": labels}
        wrong = [name for name, value in given.items() if value is not None]
        if optimizer != _OPTIMIZER:
            wrong.append("optimizer")
        if trust.allow:
            wrong.append("allow")
        if wrong:
            raise DistIRError(
                f"search: {' and '.join(wrong)} are for a module; a program has its inputs, "
                f"loss and optimizer already"
            )
        return [ModelProgram.of(one).module for one in several]
    from torch import nn

    if not isinstance(model, nn.Module):
        raise DistIRError(
            f"search: a {type(model).__name__} is no model; give a module of PyTorch, a "
            f"program or a path"
        )
    if args is None and kwargs is None:
        raise DistIRError("search: a module needs example inputs; give args=(...)")
    from distir.parallel.compilation import forward_program, training_program
    from distir.parallel.losses import example_labels

    own, named = tuple(args or ()), dict(kwargs or {})
    if optimizer is None:
        if loss is not None or labels is not None:
            raise DistIRError(
                "search: a loss is of use in training only, and labels with it; leave them "
                "out, or name an optimizer"
            )
        return [forward_program(model, own, named, trust=trust).module]
    step = training_program(
        *(model, own, named, loss, optimizer),
        example=example_labels(loss, labels),
        trust=trust,
    )
    return [step[0].module]
