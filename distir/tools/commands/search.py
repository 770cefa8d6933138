"""`distir search`: finds the best plan to distribute a program."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distir.interpreters.simulator.options import SimulationOptions
from distir.launch.options import ProcessOptions
from distir.planning.plans.options import ListOptions
from distir.program.options import EntryOptions
from distir.tools.arguments.cluster import add_cluster_arguments, add_profile_argument
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.grid import add_grid_arguments, add_jobs_argument
from distir.tools.arguments.types import (
    output_file_of,
    output_program,
    positive_integer,
)
from distir.tools.auto_search import (
    add_auto_arguments,
    check_auto_arguments,
    plan_search,
    search_options,
)

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from distir.planning.grid import Result, Simulated
    from distir.planning.plans.options import SearchOptions
    from distir.planning.plans.plan_search import PlanSearch
    from distir.solver.clock import Clock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "programs",
        type=Path,
        nargs="+",
        metavar="model.mlir",
        help="a sequential program; several are one model for several sizes of the batch, "
        "which then are searched too",
    )
    add_options(parser, EntryOptions)
    add_cluster_arguments(parser)
    add_profile_argument(parser)
    add_grid_arguments(parser)
    add_auto_arguments(parser)
    add_options(parser, ListOptions, ("top",))
    parser.add_argument(
        "--measure",
        type=positive_integer,
        metavar="N",
        help="run the N best plans on processes of this machine, one for each device, and "
        "choose the fastest; also say how alike the simulator and the machine rank them",
    )
    add_options(parser, ProcessOptions, ("backend",))
    add_jobs_argument(parser)
    add_options(parser, ListOptions, ("resume",))
    add_options(
        parser, SimulationOptions, ("json",), help="write all results to a file"
    )
    parser.add_argument(
        "--plot",
        type=output_file_of(".svg"),
        metavar="out.svg",
        help="draw throughput over peak memory, with the Pareto front",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=output_program,
        metavar="best.mlir",
        help="write the best distributed program",
    )
    parser.add_argument(
        "--save-plan",
        type=output_file_of(".json"),
        metavar="plan.json",
        help="write the best plan, for `distir distribute --plan` and distir.parallelize",
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError
    from distir.hardware import load_cluster
    from distir.planning.grid import batch_of, nothing_fits, ranked
    from distir.planning.grid.search import GridSearch
    from distir.planning.plans.programs import replace_cluster
    from distir.program.entries import chosen_entry
    from distir.solver.clock import Clock
    from distir.tools.arguments.cluster import chosen_profiles
    from distir.tools.files import read_program
    from distir.tools.reports.pareto_plot import write_pareto_plot
    from distir.tools.reports.reporting import INTERRUPTED, note, progress, progress_bar
    from distir.transforms.expert_shards import assume_imbalance

    clock = Clock(arguments.time_limit)
    check_auto_arguments(arguments)
    cluster = load_cluster(arguments.cluster, arguments.devices)
    profiles = chosen_profiles(arguments.profile, cluster)
    options = search_options(arguments, profiles)
    options.check()
    with progress("reading the programs"):
        whole = [read_program(path) for path in arguments.programs]
        for module in whole:
            assume_imbalance(module, arguments.expert_imbalance)
        modules = [chosen_entry(module, arguments.entry) for module in whole]
    if arguments.auto:
        return _run_auto(arguments, options, modules, clock)
    with progress("reading the programs"):
        search = plan_search(modules, cluster, options, arguments)
    assert isinstance(search, GridSearch)
    by_batch = dict(zip(map(batch_of, modules), arguments.programs, strict=True))
    with progress_bar("simulating", len(search.plans)) as advance:
        search.run(arguments.resume, advance)
    results = sorted(search.results.values(), key=lambda o: o.plan)
    finished = search.finished
    if arguments.json is not None:
        search.outcomes().save(arguments.json)
    if arguments.plot is not None:
        write_pareto_plot(arguments.plot, results)
    if not finished:
        how = (
            "--resume goes on from here"
            if arguments.resume
            else "--resume FILE saves them"
        )
        note(
            f"interrupted after {len(results)} of {len(search.plans)} configurations; {how}"
        )
    if not ranked(results):
        if finished:
            raise DistIRError(nothing_fits(results))
        return INTERRUPTED
    _report(results, arguments.top)
    if finished:
        _measure(search, arguments)
    if arguments.save_plan is not None:
        _save_plan(search, arguments.save_plan)
    best = search.best
    if arguments.output is not None and best is not None:
        path = by_batch[best.plan.batch]
        module = whole[arguments.programs.index(path)]
        if arguments.entry is None:
            module = search.programs(best.plan.batch)
        else:
            replace_cluster(module, cluster)
        _write_best(search, best, module, path, arguments.output)
    return 0 if finished else INTERRUPTED


def _measure(search: PlanSearch, arguments: argparse.Namespace) -> None:
    """With `--measure`, runs the best plans on this machine and reports the results."""
    if arguments.measure is None:
        return
    from distir.launch.step_times import StepTiming
    from distir.tools.plan_runs import report_runs, run_plans
    from distir.tools.reports.reporting import progress

    with progress("running the fastest plans"):
        timing = StepTiming(arguments.backend)
        runs = run_plans(search, arguments.measure, timing)
    report_runs(runs)


def _run_auto(
    arguments: argparse.Namespace,
    options: SearchOptions,
    modules: list[ModuleOp],
    clock: Clock,
) -> int:
    """
    Runs `distir search --auto` and returns the exit code. While the search runs, the
    output files hold the best plan so far. The files keep this plan if the user
    interrupts the search or if a later part fails.
    """
    from distir.errors import DistIRError
    from distir.planning.auto.results import nothing_found
    from distir.planning.grid import batch_of
    from distir.tools.auto_search import PlanFiles, explain, search
    from distir.tools.reports.pareto_plot import write_pareto_plot
    from distir.tools.reports.reporting import INTERRUPTED, note

    by_batch = dict(zip(map(batch_of, modules), arguments.programs, strict=True))
    files = PlanFiles(by_batch, arguments.output, arguments.save_plan)
    found = search(arguments, options, modules, clock, files)
    files.keep(found)  # before anything else can fail
    results = sorted(found.results.values(), key=lambda o: o.plan)
    if arguments.json is not None:
        found.outcomes().save(arguments.json)
    if arguments.plot is not None:
        write_pareto_plot(arguments.plot, results)
    best = found.best
    if best is None and found.interrupted:
        note(nothing_found(found))
        return INTERRUPTED
    if best is None:
        raise DistIRError(nothing_found(found))
    _report(results, arguments.top)
    _measure(found, arguments)
    if arguments.explain:
        explain(found)
    files.write(found)
    return INTERRUPTED if found.interrupted else 0


def _save_plan(search: PlanSearch, path: Path) -> None:
    from distir.planning.plans.saved_plan import SavedPlan
    from distir.tools.auto_search import explanation

    SavedPlan.of(search, lambda: explanation(search)).save(path)


def _report(results: Sequence[Result], top: int) -> None:
    from distir.planning.grid import Impossible, nothing_fits, pareto_front, ranked
    from distir.tools.reports.reporting import bytes_text, note, seconds_text, table

    best, front = ranked(results), pareto_front(results)
    if not best:
        note(nothing_fits(results))
        return
    illegal = [o for o in results if isinstance(o, Impossible)]
    large = len(results) - len(illegal) - len(best)
    print(
        f"{len(results)} configurations: {len(best)} fit, {large} need more memory, "
        f"{len(illegal)} are not possible"
    )
    headings = ["configuration", "samples/s", "step time", "peak memory", "of"]

    def row(result: Simulated) -> list[str]:
        return [
            str(result.plan),
            f"{result.throughput_samples_per_s:.4g}",
            seconds_text(result.step_time_s),
            bytes_text(result.peak_memory_bytes),
            bytes_text(result.memory_bytes),
        ]

    print(f"\nthe {min(top, len(best))} fastest")
    table(headings, [row(o) for o in best[:top]])
    print("\nPareto front: nothing is faster with as little memory")
    table(headings, [row(o) for o in front])
    if illegal:
        note(
            f"not possible: {len(illegal)} configurations, such as "
            f"{illegal[0].plan}: {illegal[0].error}"
        )


def _write_best(
    search: PlanSearch, best: Simulated, module: ModuleOp, source: Path, output: Path
) -> None:
    """
    Distributes `module` by the plan `best` and writes it to `output`, with all of its
    entries. `source` is the file from which the module was read.
    """
    from distir.passes.distribute import DistributePass
    from distir.planning.annotations import add_notes, read_notes
    from distir.planning.grid import GridPlan, chosen
    from distir.tools.files import apply_passes, write_program
    from distir.tools.reports.reporting import note

    assert isinstance(best.plan, GridPlan)
    apply_passes(module, DistributePass.of(best.plan.options()))
    results = list(search.results.values())
    add_notes(module, [search.measured_note() or chosen(best, results)])
    for text in read_notes(module):
        note(text)
    write_program(module, output, source)
