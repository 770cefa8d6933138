"""`distir schedule --tune`: its options, the tuning run and its output."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distir.launch.options import ProcessOptions
from distir.planning.plans.options import ListOptions
from distir.tools.arguments.cluster import (
    add_cluster_arguments,
    add_profile_argument,
    chosen_profiles,
)
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.distribution import written_options
from distir.tools.arguments.grid import add_grid_arguments, add_jobs_argument
from distir.tools.arguments.training import add_training_arguments, differentiate_pass
from distir.tools.arguments.types import non_negative_integer

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.transform import NamedSequenceOp

    from distir.scheduling.tuning.programs import TunedPrograms
    from distir.scheduling.tuning.space import Point
    from distir.scheduling.tuning.tuner import Tuner

METHODS = ("exhaustive", "descent", "measure")


def add_tuning_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a tuning run to `parser`."""
    group = parser.add_argument_group("tuning")
    group.add_argument(
        "--tune",
        nargs="+",
        metavar=("METHOD", "N"),
        help="find the best values of the knobs, and the best plan of the grid beside them: "
        "exhaustive simulates all of them, descent at most N (default 100) on a randomised "
        "coordinate descent, measure runs at most N on processes of this machine, in an order "
        "that the simulator and the runs so far say",
    )
    group.add_argument(
        "--also",
        type=Path,
        action="append",
        default=[],
        metavar="other.mlir",
        help="the same model for another size of the batch, which is tuned too; may be "
        "repeated",
    )
    add_options(group, ListOptions, ("resume",))
    add_options(
        group,
        ProcessOptions,
        ("seed",),
        type=non_negative_integer,
        metavar="N",
        help="of the random numbers of a descent, or of the inputs of --verify (default 0)",
    )
    add_options(group, ListOptions, ("top",))
    add_options(parser, ProcessOptions, ("backend",))
    add_jobs_argument(parser)
    add_cluster_arguments(parser, required=False)
    add_profile_argument(parser)
    add_grid_arguments(parser)
    add_training_arguments(parser)


def check_tuning_arguments(arguments: argparse.Namespace) -> None:
    """
    Raises DistIRError for arguments that cannot be combined. Without `--tune`, options
    of a tuning run may not be given.
    """
    from distir.errors import DistIRError, one_of

    if arguments.tune is None:
        known, step = argparse.ArgumentParser(), argparse.ArgumentParser()
        add_tuning_arguments(known)
        add_training_arguments(step)
        # --verify compares training steps too, and -o writes one.
        used = {"help"}
        if arguments.verify or arguments.output is not None:
            used |= {action.dest for action in step._actions}  # pyright: ignore[reportPrivateUsage]
        if arguments.verify:
            used.add("seed")
        for action in known._actions:  # pyright: ignore[reportPrivateUsage]
            given = getattr(arguments, action.dest, action.default)
            if action.dest not in used and given != action.default:
                raise DistIRError(
                    f"{action.option_strings[0]} is of use with --tune only; add it"
                )
        return
    method, *count = arguments.tune
    one_of("method of tuning", method, METHODS, "--tune")
    is_number = len(count) == 1 and count[0].isascii() and count[0].isdigit()
    if count and (not is_number or int(count[0]) < 1 or method == "exhaustive"):
        raise DistIRError(
            f"cannot read --tune {' '.join(arguments.tune)}; write exhaustive, descent, "
            f"descent N, or measure N, with N a whole number"
        )
    if method == "measure" and not count:
        raise DistIRError("say how many points may be run: --tune measure N")
    if arguments.cluster is None:
        raise DistIRError("--tune needs --cluster, what to distribute over")
    if arguments.set:
        raise DistIRError(
            "--tune chooses the values of knobs, so that --set cannot be given beside it; "
            "leave out the other values in the script"
        )


@dataclass(frozen=True, eq=False)
class TunedSchedule:
    """
    A finished tuning run that found a best point (knob values and a plan). `tuner` has
    all results. `programs` makes the program of a point. `interrupted` tells whether
    the user interrupted the run.
    """

    tuner: Tuner
    programs: TunedPrograms
    interrupted: bool

    @property
    def best(self) -> Point:
        """The best point: a value for each knob of the schedule, and a plan."""
        best = self.tuner.best
        assert best is not None
        return best

    def module(self) -> ModuleOp:
        """Returns the program of the best point, with the schedule applied."""
        return self.programs.scheduled(self.best.chosen, self.best.plan.batch)


def tune(
    arguments: argparse.Namespace, modules: list[ModuleOp], sequence: NamedSequenceOp
) -> TunedSchedule:
    """
    Tunes the knobs of a schedule and the plan. `modules` are the same model for
    different batch sizes. `sequence` is the schedule. Raises DistIRError if two of
    `modules` have the same batch size, or if no point (knob values and a plan) fits
    into memory. Raises KeyboardInterrupt if the user interrupts the run before the
    first result.
    """
    from distir.errors import DistIRError
    from distir.hardware import load_cluster
    from distir.interpreters.simulator.profiles.files import load_profiles
    from distir.planning.plans.plan import Space
    from distir.planning.plans.programs import batch_of
    from distir.scheduling.tuning.programs import TunedPrograms
    from distir.scheduling.tuning.space import TuningSpace
    from distir.scheduling.tuning.tuner import Tuner, journal_of
    from distir.tools.auto_search import search_options
    from distir.tools.files import apply_passes
    from distir.transforms.expert_shards import assume_imbalance

    cluster = load_cluster(arguments.cluster, arguments.devices)
    differentiate = differentiate_pass(arguments)
    options = search_options(arguments, chosen_profiles(arguments.profile, cluster))
    options.check()
    for module in modules:
        assume_imbalance(module, arguments.expert_imbalance)
    models = {batch_of(module): module for module in modules}
    if len(models) < len(modules):
        raise DistIRError("two of the programs have the same size of the batch")

    def prepare(module: ModuleOp) -> None:
        if differentiate is not None:
            apply_passes(module, differentiate)

    grid = Space.of(
        options,
        sorted(models),
        differentiate is not None,
        cluster.size,
        arguments.degrees,
    )
    profiles = load_profiles(options.profile, cluster)
    programs = TunedPrograms(models, sequence, cluster, prepare, profiles)
    space = TuningSpace(sequence, grid.plans())
    interrupted = False
    with journal_of(arguments.resume, programs, str(differentiate)) as journal:
        tuner = Tuner(space, programs, arguments.jobs, journal)
        try:
            _run(tuner, arguments)
        except KeyboardInterrupt:
            interrupted = True
    if tuner.best is None and interrupted and not tuner.trials:
        raise KeyboardInterrupt
    if tuner.best is None:
        raise DistIRError(f"tuning: {tuner.nothing_fits()}")
    return TunedSchedule(tuner, programs, interrupted)


def report_tuning(tuned: TunedSchedule, arguments: argparse.Namespace) -> None:
    """
    Prints the best points of a tuning run, and the commands that produce the best
    program.
    """
    from distir.tools.reports.reporting import note

    if tuned.interrupted:
        how = (
            "--resume goes on from here"
            if arguments.resume
            else "--resume FILE saves them"
        )
        note(f"interrupted after {len(tuned.tuner.trials)} points; {how}")
    _report(tuned.tuner, arguments.top)
    note(f"the best: {tuned.best}; {_how(tuned.best, arguments)}")


def _run(tuner: Tuner, arguments: argparse.Namespace) -> None:
    from distir.scheduling.tuning.tuner import EVALUATIONS
    from distir.tools.reports.reporting import progress

    method, *count = arguments.tune
    if method == "measure":
        from distir.launch.step_times import StepTimer, StepTiming

        with (
            StepTimer(StepTiming(arguments.backend)) as timer,
            progress("simulating and running"),
        ):
            tuner.measure(int(count[0]), timer.seconds)
        return
    with progress("simulating"):
        if method == "exhaustive":
            tuner.exhaustive()
        else:
            evaluations = int(count[0]) if count else EVALUATIONS
            tuner.descent(evaluations, arguments.seed)


def _report(tuner: Tuner, top: int) -> None:
    """
    Prints the number of points that were tried, and a table of the `top` best points.
    """
    from distir.planning.plans.result import Impossible, Simulated
    from distir.tools.reports.reporting import bytes_text, note, seconds_text, table

    results = list(tuner.trials.values())
    ranked = tuner.ranked
    illegal = [r for r in results if isinstance(r, Impossible)]
    large = len(results) - len(illegal) - len(ranked)
    print(
        f"{len(results)} of up to {tuner.space.most} points simulated: {len(ranked)} fit, "
        f"{large} need more memory, {len(illegal)} are not possible"
    )
    rows: list[list[str]] = []
    for point in ranked[:top]:
        result = tuner.trials[point]
        assert isinstance(result, Simulated)
        rows.append(
            [
                str(point),
                f"{result.throughput_samples_per_s:.4g}",
                seconds_text(result.step_time_s),
                bytes_text(result.peak_memory_bytes),
            ]
        )
    print(f"\nthe {min(top, len(ranked))} fastest, simulated")
    table(["point", "samples/s", "step time", "peak memory"], rows)
    if tuner.measured:
        _report_runs(tuner)
    if illegal:
        first = next(p for p, r in tuner.trials.items() if r is illegal[0])
        note(
            f"not possible: {len(illegal)} points, such as {first}: {illegal[0].error}"
        )


def _report_runs(tuner: Tuner) -> None:
    """Prints the measured throughput of points beside the predicted throughput."""
    from distir.planning.plans.rank_correlation import rank_correlation
    from distir.planning.plans.result import Simulated
    from distir.tools.reports.reporting import table

    rows: list[list[str]] = []
    predicted, measured = list[float](), list[float]()
    places = {point: i + 1 for i, point in enumerate(tuner.ranked)}
    for point, found in sorted(
        tuner.measured.items(), key=lambda item: -(item[1].throughput or 0.0)
    ):
        result = tuner.trials.get(point)
        if not isinstance(result, Simulated):
            continue
        throughput = found.throughput
        if throughput is not None:
            predicted.append(result.throughput_samples_per_s)
            measured.append(throughput)
        rows.append(
            [
                str(point),
                "out of memory" if throughput is None else f"{throughput:.4g}",
                f"{result.throughput_samples_per_s:.4g}",
                str(places.get(point, "")),
            ]
        )
    print(f"\n{len(rows)} points, run on this machine")
    table(["point", "samples/s", "predicted", "of rank"], rows)
    if len(measured) > 1:
        found = rank_correlation(predicted, measured)
        print(f"rank correlation of predicted and measured throughput: {found:.3f}")


def _how(best: Point, arguments: argparse.Namespace) -> str:
    """Returns the commands that produce the program of the point `best`."""
    sets = " ".join(f"--set {setting}" for setting in best.settings)
    given = " ".join(written_options(best.plan.options(), always="dtpk"))
    schedule = f"`distir schedule {sets}`" if sets else "`distir schedule`"
    if arguments.training:
        schedule += " with these options of the step"
    return f"{schedule} and `distir distribute {given}` make it"
