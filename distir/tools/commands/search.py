"""`distir search`: the best of many ways to distribute a program."""

from __future__ import annotations

import argparse
import json
from argparse import ArgumentTypeError
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from distir.tools.arguments import (
    add_cluster_arguments,
    add_profile_argument,
    names,
    positive_integer,
    positive_integers,
)
from distir.tools.auto_search import (
    add_auto_arguments,
    check_auto_arguments,
    search_options,
)

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from distir.planning.configuration import SearchOptions
    from distir.planning.grid import Configuration, Journal, Outcome, Programs
    from distir.solver.clock import Clock


def _degrees(text: str) -> tuple[int, int, int]:
    found = positive_integers(text)
    if len(found) != 3:
        raise ArgumentTypeError(f"{text!r} is not of the form D,T,P")
    return found[0], found[1], found[2]


def _stages(text: str) -> tuple[int, ...]:
    if any(part not in ("0", "1", "2", "3") for part in text.split(",")):
        raise ArgumentTypeError(f"{text!r} is not a list of ZeRO stages from 0 to 3")
    return tuple(int(part) for part in text.split(","))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "programs",
        type=Path,
        nargs="+",
        metavar="model.mlir",
        help="a sequential program; several are one model for several sizes of the batch, "
        "which then are searched too",
    )
    add_cluster_arguments(parser)
    add_profile_argument(parser)
    grid = parser.add_argument_group("the grid")
    grid.add_argument(
        "--world-size",
        type=positive_integer,
        metavar="N",
        help="devices that each configuration uses: all d x t x p = N (default: "
        "those of --devices, or all of the cluster)",
    )
    grid.add_argument(
        "--degrees",
        type=_degrees,
        action="append",
        default=[],
        metavar="D,T,P",
        help="only these data-parallel, tensor-parallel and pipeline degrees; may be "
        "repeated",
    )
    grid.add_argument(
        "--micro-batches",
        type=positive_integers,
        default=(),
        metavar="K,...",
        help="numbers of micro-batches of a pipeline (default 2,4,...,128); if given, a "
        "training step accumulates gradients on a single pipeline rank too",
    )
    grid.add_argument(
        "--zero",
        type=_stages,
        default=(),
        metavar="STAGE,...",
        help="ZeRO stages of a training step (default 0; with --auto all)",
    )
    grid.add_argument(
        "--checkpoint",
        type=names,
        default=(),
        metavar="POLICY,...",
        help="what a training step recomputes: none, full, whole, selective (default none; with "
        "--auto all)",
    )
    grid.add_argument(
        "--schedules",
        type=names,
        default=(),
        metavar="NAME,...",
        help="pipeline schedules (default: 1f1b, or forward for inference)",
    )
    grid.add_argument(
        "--overlap",
        type=names,
        default=(),
        metavar="off,on",
        help="whether communication overlaps computation: off, on or both (default off; "
        "with --auto both)",
    )
    add_auto_arguments(parser)
    parser.add_argument(
        "--top",
        type=positive_integer,
        default=10,
        metavar="N",
        help="how many of the best to list (default 10)",
    )
    parser.add_argument(
        "--jobs",
        type=positive_integer,
        default=0,
        metavar="N",
        help="processes (default: one for each core)",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="write every outcome to this file at once, and skip those in it already",
    )
    parser.add_argument(
        "--json", type=Path, metavar="out.json", help="write all outcomes to a file"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="out.svg",
        help="draw throughput over peak memory, with the Pareto front",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="best.mlir",
        help="write the best distributed program",
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.dialects.device import ClusterOp
    from distir.errors import DistIRError, one_of
    from distir.hardware import load_cluster
    from distir.pipelining.registry import SCHEDULES
    from distir.planning.grid import (
        Journal,
        Programs,
        Space,
        batch_of,
        nothing_fits,
        ranked,
        trains,
    )
    from distir.solver.clock import Clock
    from distir.tools.files import read_program
    from distir.tools.pareto_plot import write_pareto_plot
    from distir.tools.reporting import INTERRUPTED, note, progress
    from distir.transforms.checkpointing import POLICIES

    clock = Clock(arguments.time_limit)
    options = search_options(arguments)
    for name in options.schedules:
        one_of("pipeline schedule", name, SCHEDULES)
    for name in options.checkpoint:
        one_of("checkpoint policy", name, POLICIES)
    check_auto_arguments(arguments)
    for path in (arguments.json, arguments.plot, arguments.output):
        if path is not None and not path.parent.is_dir():
            raise DistIRError(f"cannot write {path}: there is no folder {path.parent}")
    with progress("reading the programs"):
        modules = [read_program(path) for path in arguments.programs]
    if arguments.auto:
        return _run_auto(arguments, options, modules, clock)
    with progress("reading the programs"):
        cluster: ClusterOp = load_cluster(arguments.cluster, arguments.devices)
        programs = Programs.of(modules, cluster, options.profile)
    by_batch = dict(zip(map(batch_of, modules), arguments.programs, strict=True))
    if len({trains(module) for module in modules}) > 1:
        raise DistIRError("some of the programs are training steps and some are not")
    configurations = Space.of(
        options, sorted(by_batch), trains(modules[0]), cluster.size, arguments.degrees
    ).configurations()
    journal = Journal(arguments.resume, programs) if arguments.resume else None
    with journal or nullcontext():
        outcomes, finished = _evaluated(programs, configurations, journal, options.jobs)
    outcomes.sort(key=lambda o: o.configuration)
    if arguments.json is not None:
        _write_json(arguments.json, outcomes, finished)
    if arguments.plot is not None:
        write_pareto_plot(arguments.plot, outcomes)
    if not finished:
        how = "--resume goes on from here" if journal else "--resume FILE saves them"
        note(
            f"interrupted after {len(outcomes)} of {len(configurations)} configurations; "
            f"{how}"
        )
        if outcomes:
            _report(outcomes, arguments.top)
        return INTERRUPTED
    if not ranked(outcomes):
        raise DistIRError(nothing_fits(outcomes))
    _report(outcomes, arguments.top)
    if arguments.output is not None:
        best = ranked(outcomes)[0]
        path = by_batch[best.configuration.batch]
        _write_best(best, outcomes, programs, path, arguments.output)
    return 0


def _run_auto(
    arguments: argparse.Namespace,
    options: SearchOptions,
    modules: list[ModuleOp],
    clock: Clock,
) -> int:
    """The search beyond the grid: the best plan found, even if the user interrupts."""
    from distir.errors import DistIRError
    from distir.planning.auto.results import nothing_found
    from distir.planning.grid import batch_of
    from distir.tools.auto_search import explain, search, write_plan
    from distir.tools.pareto_plot import write_pareto_plot
    from distir.tools.reporting import INTERRUPTED, note

    found, interrupted = search(arguments, options, modules, clock)
    outcomes = sorted(found.outcomes.values(), key=lambda o: o.configuration)
    if arguments.json is not None:
        _write_json(arguments.json, outcomes, found.finished)
    if arguments.plot is not None:
        write_pareto_plot(arguments.plot, outcomes)
    best = found.best
    if best is None and interrupted:
        note(nothing_found(found))
        return INTERRUPTED
    if best is None:
        raise DistIRError(nothing_found(found))
    _report(outcomes, arguments.top)
    if arguments.explain:
        explain(found)
    by_batch = dict(zip(map(batch_of, modules), arguments.programs, strict=True))
    write_plan(found, by_batch[best.configuration.batch], arguments.output)
    return INTERRUPTED if interrupted else 0


def _evaluated(
    programs: Programs,
    configurations: Sequence[Configuration],
    journal: Journal | None,
    jobs: int,
) -> tuple[list[Outcome], bool]:
    """The outcomes, and whether there was time for all of them."""
    from distir.planning.grid import run as evaluate_all
    from distir.tools.reporting import progress_bar

    wanted = set(configurations)
    before = journal.outcomes if journal else []
    outcomes = [o for o in before if o.configuration in wanted]
    done = {o.configuration for o in outcomes}
    missing = [c for c in configurations if c not in done]
    try:
        with progress_bar("simulating", len(configurations)) as advance:
            advance(len(outcomes))
            for some in evaluate_all(programs, missing, jobs) if missing else ():
                outcomes += some
                if journal is not None:
                    journal.add(some)
                advance(len(some))
    except KeyboardInterrupt:
        return outcomes, False
    return outcomes, True


def _report(outcomes: Sequence[Outcome], top: int) -> None:
    from distir.planning.grid import nothing_fits, pareto_front, ranked
    from distir.tools.reporting import bytes_text, note, seconds_text, table

    best, front = ranked(outcomes), pareto_front(outcomes)
    if not best:
        note(nothing_fits(outcomes))
        return
    illegal = [o for o in outcomes if not o.is_legal]
    large = sum(o.is_legal and not o.fits for o in outcomes)
    print(
        f"{len(outcomes)} configurations: {len(best)} fit, {large} need more memory, "
        f"{len(illegal)} are not possible"
    )
    headings = ["configuration", "samples/s", "step time", "peak memory", "of"]

    def row(outcome: Outcome) -> list[str]:
        return [
            str(outcome.configuration),
            f"{outcome.throughput_samples_per_s:.4g}",
            seconds_text(outcome.step_time_s),
            bytes_text(outcome.peak_memory_bytes),
            bytes_text(outcome.memory_bytes),
        ]

    print(f"\nthe {min(top, len(best))} fastest")
    table(headings, [row(o) for o in best[:top]])
    print("\nPareto front: nothing is faster with as little memory")
    table(headings, [row(o) for o in front])
    if illegal:
        note(
            f"not possible: {len(illegal)} configurations, such as "
            f"{illegal[0].configuration}: {illegal[0].error}"
        )


def _write_json(path: Path, outcomes: Sequence[Outcome], finished: bool) -> None:
    from distir.errors import DistIRError
    from distir.planning.grid import pareto_front, ranked

    data = {
        "finished": finished,
        "best": [o.to_json() for o in ranked(outcomes)[:1]],
        "pareto_front": [o.to_json() for o in pareto_front(outcomes)],
        "outcomes": [o.to_json() for o in outcomes],
    }
    try:
        path.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise DistIRError(f"cannot write {path}: {error.strerror}") from error


def _write_best(
    best: Outcome,
    outcomes: list[Outcome],
    programs: Programs,
    source: Path,
    output: Path,
) -> None:
    from distir.planning.annotations import add_notes, read_notes
    from distir.planning.grid import chosen, distribute_pass
    from distir.tools.files import apply_passes, keep_weights_reachable, write_program
    from distir.tools.reporting import note

    module: ModuleOp = programs(best.configuration.batch)
    apply_passes(module, distribute_pass(best.configuration))
    add_notes(module, [chosen(best, outcomes)])
    for text in read_notes(module):
        note(text)
    keep_weights_reachable(module, source, output)
    write_program(module, output)
