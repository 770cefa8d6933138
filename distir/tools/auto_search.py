"""`distir search --auto`: its arguments, its output and the files of its plan."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING

from distir.planning.plans.options import RequestOptions
from distir.system.output_files import is_replaceable
from distir.tools.arguments.declared import add_options

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.ir import Attribute

    from distir.dialects.device import ClusterOp
    from distir.planning.auto.auto import AutoSearch
    from distir.planning.grid.search import GridSearch
    from distir.planning.plans.options import SearchOptions
    from distir.planning.plans.plan import Plan
    from distir.planning.plans.plan_search import PlanSearch
    from distir.solver.clock import Clock

_NOT_ENDED = "the search had not ended when this plan was saved"

_OF_AUTO = ("time_limit", "explain", "shard", "whole")


def add_auto_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the search beyond the grid to `parser`."""
    group = parser.add_argument_group("beyond the grid")
    group.add_argument(
        "--auto",
        action="store_true",
        help="besides the grid search layouts, stages, ZeRO stages, checkpoint policies, "
        "schedules and overlap; options of the grid then say which values may be chosen",
    )
    add_options(group, RequestOptions, ("time_limit",))
    group.add_argument(
        "--explain",
        action="store_true",
        help="show for each module of the model the choice, the time of the runner-up, "
        "and whether memory binds",
    )
    add_options(group, RequestOptions, ("shard", "whole"))


def check_auto_arguments(
    arguments: argparse.Namespace, written: Callable[[str], str] = "--{}".format
) -> None:
    """
    Raises DistIRError for options that cannot be combined. `written` returns the user's
    spelling of an option, for the message.
    """
    from distir.errors import DistIRError

    def named(name: str) -> str:
        return written(name.replace("_", "-"))

    if arguments.auto and arguments.resume is not None:
        raise DistIRError(
            f"{named('resume')} is of the grid search; leave it out with {named('auto')}"
        )
    if not arguments.auto:
        for name in _OF_AUTO:
            if getattr(arguments, name):
                raise DistIRError(
                    f"{named(name)} is of the search with {named('auto')}; add that"
                )


def search_options(
    arguments: argparse.Namespace, profiles: tuple[str, ...]
) -> SearchOptions:
    """
    Returns the options of a search from the arguments of `distir search`. `profiles`
    are the profiles of the cluster's devices.
    """
    from distir.planning.plans.options import SearchOptions

    given = {
        field.name: getattr(arguments, field.name) for field in fields(SearchOptions)
    }
    given["profile"] = profiles
    given["world_size"] = arguments.world_size or arguments.devices
    return SearchOptions(**given)


def plan_search(
    modules: Sequence[ModuleOp],
    cluster: ClusterOp,
    options: SearchOptions,
    arguments: argparse.Namespace,
    clock: Clock | None = None,
    **follow: Callable[..., None] | None,
) -> GridSearch | AutoSearch:
    """
    Returns the search that the arguments of `distir search` describe, without starting
    it. With `--auto` and a time limit, `clock` ends the search. `follow` has, by name,
    functions that a search with `--auto` calls while it runs. Raises DistIRError for
    options that contradict each other.
    """
    from distir.planning.auto.auto import auto_search
    from distir.planning.grid.search import GridSearch
    from distir.planning.requests import Requests

    if not arguments.auto:
        return GridSearch(modules, cluster, options, arguments.degrees)
    limit = None if arguments.time_limit is None or clock is None else clock.left
    return auto_search(
        modules,
        cluster,
        options,
        requests=Requests(tuple(arguments.shard), tuple(arguments.whole)),
        degrees=arguments.degrees,
        time_limit=None if limit is None else max(limit, 0.0),
        **follow,
    )


def search(
    arguments: argparse.Namespace,
    options: SearchOptions,
    modules: list[ModuleOp],
    clock: Clock,
    files: PlanFiles,
) -> AutoSearch:
    """
    Runs a search with `--auto` and returns it. The search prints its progress and
    writes the best plan so far to `files`. With a time limit, `clock` ends the search.
    Raises DistIRError if the search or a file fails.
    """
    from distir.hardware import load_cluster
    from distir.planning.auto.auto import AutoSearch
    from distir.tools.reports.reporting import note, seconds_text, time_range_text

    began = monotonic()

    def on_progress(search: AutoSearch) -> None:
        best = search.best
        known = (
            f"best {best.plan}, {seconds_text(best.step_time_s)} a step"
            if best
            else "nothing fits yet"
        )
        spent = seconds_text(monotonic() - began)
        note(
            f"round {search.rounds}, {len(search.results)} plans judged in {spent}: {known}"
        )

    def on_forecast(least: float, most: float) -> None:
        note(
            f"this takes {time_range_text(least, most)} on this machine, as the first plans "
            f"tell; Ctrl-C ends it with the best plan so far"
        )

    found = plan_search(
        modules,
        load_cluster(arguments.cluster, arguments.devices),
        options,
        arguments,
        clock,
        on_progress=on_progress,
        on_forecast=on_forecast if arguments.time_limit is None else None,
        on_best=files.keep,
    )
    assert isinstance(found, AutoSearch)
    if arguments.time_limit is None:
        first = len(found.space.first())
        note(
            f"{first} plans are to be judged first, then the neighbours of the best, until "
            f"none of them is better; --time-limit ends earlier with the best found"
        )
    found.run()
    return found


@dataclass
class PlanFiles:
    """
    The output files of a search. The search writes them each time it finds a better
    plan.

    - `sources`: the file of the program for each batch size;
    - `program`: the output file of the distributed program, or None;
    - `plan`: the output file of the plan, or None.
    """

    sources: Mapping[int, Path]
    program: Path | None
    plan: Path | None
    _kept: Plan | None = None
    """The plan that is currently in the files."""
    _weights: tuple[int, Attribute | None] | None = None
    """
    The batch size of the written program, and the name of its weights file. They are
    remembered so that the weights are copied once only, as copying takes time.
    """

    def keep(self, search: AutoSearch) -> None:
        """
        Writes the best plan so far, unless the files already hold it. Skips a file that
        can be written only once, such as a pipe. Raises DistIRError if a file cannot be
        written.
        """
        best = search.best
        if best is None or best.plan == self._kept:
            return
        if self.program is not None and is_replaceable(self.program):
            self._write_program(search, self.program)
        if self.plan is not None and is_replaceable(self.plan):
            self._write_plan(search, self.plan, lambda: _NOT_ENDED)
        self._kept = best.plan

    def write(self, search: AutoSearch) -> None:
        """
        Writes the final best plan of a search and reports it. Raises DistIRError if a
        file cannot be written.
        """
        from distir.planning.annotations import read_notes
        from distir.planning.auto.results import chosen_plan
        from distir.tools.reports.reporting import note

        if self.program is None:
            note(search.measured_note() or chosen_plan(search))
        else:
            for text in read_notes(self._write_program(search, self.program)):
                note(text)
        if self.plan is not None:
            self._write_plan(search, self.plan, lambda: explanation(search))

    def _write_program(self, search: AutoSearch, file: Path) -> ModuleOp:
        """
        Distributes the program by the best plan, writes the result to `file` and
        returns it.
        """
        from distir.dialects.dist_attributes import WEIGHTS
        from distir.planning.auto.results import emit
        from distir.tools.files import write_program

        best = search.best
        assert best is not None
        batch = best.plan.batch
        module = search.programs(batch)
        emit(module, search)
        if self._weights is None or self._weights[0] != batch:
            write_program(module, file, self.sources[batch])
            self._weights = batch, module.attributes.get(WEIGHTS)
            return module
        if self._weights[1] is not None:
            module.attributes[WEIGHTS] = self._weights[1]
        write_program(module, file)
        return module

    @staticmethod
    def _write_plan(
        search: PlanSearch, file: Path, explanation: Callable[[], str]
    ) -> None:
        from distir.planning.plans.saved_plan import SavedPlan

        SavedPlan.of(search, explanation).save(file)


def explain(search: PlanSearch, file: IO[str] | None = None) -> None:
    """
    Prints the layouts and times of each module, for the best plan and the runner-up.
    Also prints whether memory limits the choice. `file` is the output, stdout by
    default.
    """
    from distir.planning.auto.explain import ScopeCost, by_scope
    from distir.planning.auto.results import memory_binds, runner_up
    from distir.planning.grid.evaluate import Evaluator
    from distir.tools.reports.reporting import seconds_text, table

    best, other = search.best, runner_up(search)
    assert best is not None
    evaluator, profiles = Evaluator(search.programs), search.programs.profiles
    plans = [best, *([other] if other else [])]
    costs = [
        by_scope(evaluator.distributed(plan.plan, plan.layouts), profiles)
        for plan in plans
    ]
    chosen = f"chosen: {best.plan}, {seconds_text(best.step_time_s)} a step"
    print(f"\n{chosen}", file=file)
    if other is not None:
        slower = 100 * (other.step_time_s / best.step_time_s - 1)
        print(
            f"runner-up: {other.plan}, {seconds_text(other.step_time_s)} a step "
            f"({slower:+.3g} %)",
            file=file,
        )
    scopes = sorted(
        {scope for cost in costs for scope in cost},
        key=lambda scope: -costs[0].get(scope, ScopeCost()).seconds,
    )
    headings = ["module", "chosen layouts", "time", "of it communication"]
    if other is not None:
        headings += ["runner-up's layouts", "time", "of it communication"]
    rows: list[list[str]] = []
    for scope in scopes:
        row = [scope or "(no module)"]
        for cost in costs:
            own = cost.get(scope, ScopeCost())
            row += [
                ", ".join(own.layouts),
                seconds_text(own.seconds),
                seconds_text(own.communication_s),
            ]
        rows.append(row)
    table(headings, rows, file)
    requests = search.programs.requests
    asked = [*requests.shard, *(f"{name} whole" for name in requests.whole)]
    if asked:
        print(f"requests that every plan keeps to: {', '.join(asked)}", file=file)
    print(
        memory_binds(search)
        or "memory does not bind: no plan that needs more is faster",
        file=file,
    )


def explanation(search: PlanSearch) -> str:
    """Returns the output of `explain` as text."""
    file = StringIO()
    explain(search, file)
    return file.getvalue().strip("\n")
