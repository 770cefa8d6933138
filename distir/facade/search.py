"""`distir.search`: finds the best plan for a model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.facade.model_program import ModelProgram
from distir.frontends.torch.trust import Trust
from distir.hardware import load_cluster
from distir.interpreters.simulator.profiles.files import ProfileChoice
from distir.planning.auto.results import nothing_found
from distir.planning.grid.results import nothing_fits
from distir.planning.grid.search import GridSearch
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.saved_plan import SavedPlan
from distir.program.entries import chosen_entry
from distir.solver.clock import Clock
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import SearchingOptions
from distir.tools.auto_search import (
    check_auto_arguments,
    explanation,
    plan_search,
    search_options,
)
from distir.tools.reports.reporting import note, progress_bar
from distir.transforms.expert_shards import assume_imbalance

if TYPE_CHECKING:
    import torch

    from distir.parallel.losses import Loss
    from distir.planning.auto.auto import AutoSearch

_OPTIMIZER = "adamw"

_ANY = ("jobs", "measure")
"""The options whose value 0 means the same as leaving them out."""


def search(
    model: torch.nn.Module | ModelProgram | str | Path | Sequence[ModelProgram | str],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Loss = None,
    labels: Any = None,
    optimizer: str | None = _OPTIMIZER,
    check: bool = True,
    allow: Sequence[str] = (),
    progress: bool | Callable[[int, int | None], object] = False,
    **options: Unpack[SearchingOptions],
) -> SavedPlan:
    """
    Finds the fastest plan for distributing a model that fits into the memory of a
    cluster. The search simulates plans and needs no GPU.

    - `model`: a module, with `args` and `kwargs`, example inputs of the global batch;
      or a program of `import_model` or `build`, or its file; or a list of programs, the
      same model with several batch sizes.
    - `cluster`, `devices`: a built-in cluster or the file of one, and the number of
      devices to which it is scaled.
    - `loss`, `labels`, `optimizer`: for the training of a module, as in `parallelize`
      and `import_model`. With `optimizer=None` the plan is for inference. Do not give
      them for a program: it contains its own.
    - `auto`: also searches layouts, stages and other options, as `distir search --auto`
      does. Without it, only the plans of a grid are tried.
    - `time_limit` (seconds), `shard`, `whole`: work with `auto` only. Without a limit,
      the search ends when no change of one option improves the best plans; the layout
      search of each plan ends after 20 s.
    - `resume`: a file of results to continue from; works without `auto` only.
    - `measure`: the number of best plans that are run on processes of this machine
      (`backend`: `gloo` for its cores, `nccl` for its GPUs). The fastest of these plans
      is chosen.
    - `profile`: the speeds that devices reach in practice; by default the profiles that
      the cluster names, and `none` for the speeds in data sheets.
    - `offload_states`: by default `off`, even with `auto`, because the optimizer of a
      script with `parallelize` is the user's own.
    - `check`, `allow`: whether the program of a module is compared with the module, and
      the differences that are accepted (see `import_torch`).
    - `progress`: a function that is called while the search runs, with the number of
      plans judged so far and the number of all, which is None with `auto`. With True,
      the search prints both on stderr: a bar on a terminal, elsewhere, as in notebooks,
      a line every ten seconds.
    - The other options are those of the command `distir search`.

    Raises DistIRError if the model cannot be imported, if an option is invalid, or if
    no plan fits into memory.
    """
    given, target, plans = _asked(options)
    check_auto_arguments(given, lambda name: name.replace("-", "_"))
    clock = Clock(given.time_limit)
    trust = Trust.of(check, allow)
    modules = [
        chosen_entry(module, given.entry)
        for module in _modules(model, args, kwargs, loss, labels, optimizer, trust)
    ]
    modules = [_assuming(module, given.expert_imbalance) for module in modules]

    def on_round(search: AutoSearch) -> None:
        if callable(progress):
            progress(len(search.results), None)
        elif progress:
            note(f"round {search.rounds}, {len(search.results)} plans judged")

    found = plan_search(modules, target, plans, given, clock, on_progress=on_round)
    if isinstance(found, GridSearch):
        with _advancing(len(found.plans), progress) as advance:
            found.run(given.resume, advance)
    else:
        found.run()
    if found.interrupted and (found.best is None or not given.auto):
        raise KeyboardInterrupt
    if found.best is None:
        results = sorted(found.results.values(), key=lambda r: r.plan)
        grid = isinstance(found, GridSearch)
        why = nothing_fits(results) if grid else nothing_found(found)
        raise DistIRError(f"search: {why}")
    if given.measure:
        from distir.launch.step_times import StepTiming
        from distir.tools.plan_runs import run_plans

        run_plans(found, given.measure, StepTiming(given.backend))
    return SavedPlan.of(found, lambda: explanation(found))


def grid_search(
    program: ModelProgram, **options: Unpack[SearchingOptions]
) -> GridSearch:
    """
    Returns a search that tries a grid of plans for a program, with the options of
    `distir.search`. The caller starts the search. Raises DistIRError for options that
    contradict each other or do not suit the program.
    """
    given, target, plans = _asked(options)
    module = _assuming(program.module, given.expert_imbalance)
    return GridSearch([module], target, plans, given.degrees)


def _assuming(module: ModuleOp, imbalance: float | None) -> ModuleOp:
    """
    Returns the program with the assumption that the busiest device of expert
    parallelism has `imbalance` times the mean load. None keeps the program's own
    assumption. Raises DistIRError for a number below 1.
    """
    if imbalance is not None:
        module = module.clone()
        assume_imbalance(module, imbalance)
    return module


def _asked(
    options: SearchingOptions,
) -> tuple[argparse.Namespace, ClusterOp, SearchOptions]:
    """
    Converts `options` to the parsed arguments of `distir search`. Returns the parsed
    arguments, the cluster, and the options of the search. Raises DistIRError for
    unknown options and values.
    """
    own = {n: v for n, v in options.items() if n not in _ANY or v != 0}
    given = command_options(
        "search",
        "search",
        ["program"],
        {"offload_states": "off", **own},
        SearchingOptions.__annotations__,
    )
    target = load_cluster(given.cluster, given.devices)
    plans = search_options(given, ProfileChoice.of(given.profile, target).names)
    plans.check()
    return given, target, plans


@contextmanager
def _advancing(
    total: int, progress: bool | Callable[[int, int | None], object]
) -> Generator[Callable[[int], None]]:
    """
    Reports the progress of a grid search over `total` plans. Yields a function to call
    with the number of newly judged plans; that function calls `progress`, or prints a
    progress bar.
    """
    if progress is True:
        with progress_bar("simulating", total) as advance:
            yield advance
        return
    done = 0

    def tell(new: int) -> None:
        nonlocal done
        done += new
        if callable(progress):
            progress(done, total)

    yield tell


def _modules(
    model: Any,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    loss: Loss,
    labels: Any,
    optimizer: str | None,
    trust: Trust,
) -> list[ModuleOp]:
    """
    Returns the sequential programs to search plans for: imports a module, and reads
    programs from files. Raises DistIRError if the import or the reading fails.
    """
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
