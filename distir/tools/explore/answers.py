"""Answers for the settings of the page: numbers, drawings and commands."""

from __future__ import annotations

import json
import os
import traceback
from collections import OrderedDict
from collections.abc import Callable

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import ArgSpecParseError

from distir.dialects.device import ClusterOp
from distir.hardware import load_cluster
from distir.interpreters.simulator import Simulation, cluster_of, simulate
from distir.interpreters.simulator.profiles.files import ProfileChoice
from distir.interpreters.simulator.reports.compared_runs import accuracy_note
from distir.interpreters.simulator.reports.html_report import report_data
from distir.planning.annotations import read_notes
from distir.program.entries import chosen_entry
from distir.tools.arguments.distribution import distribute_silently
from distir.tools.explore.form import fields_of
from distir.tools.explore.jobs import Message, Steps
from distir.tools.explore.models import KnownPrograms
from distir.tools.explore.plans import PlansSeen, search_steps
from distir.tools.explore.state import Setup, State, state_of
from distir.tools.reports.reporting import bytes_text, error_message, seconds_text

_BLOCKS = 6000
"""The approximate number of blocks of all timelines of the page."""

_KEPT = 16
"""The number of answers that are kept."""


class Explorer:
    """
    Answers the requests of the page. Keeps the programs, the most recent answers, and
    all plans simulated so far. All calls must come from one thread.
    """

    def __init__(self, setup: Setup, programs: KnownPrograms):
        self._setup = setup
        self._programs = programs
        self._clusters: dict[tuple[str, int], ClusterOp] = {}
        self._answers: OrderedDict[str, list[Message]] = OrderedDict()
        self._seen = PlansSeen()

    def answer(self, query: str) -> Steps:
        """
        Yields the parts of the answer for the settings in a query:

        - `fields`, `query`, `commands`: the form, and the settings as a URL and as
          commands;
        - `phase`: the present step of the work;
        - `numbers`, `notes`: the simulated step in words, and remarks on it;
        - `front`: the plans simulated so far;
        - `report`: the data of the drawings;
        - `error`: a sentence; no part follows it.
        """
        return _reporting_errors(lambda: self._answer(query))

    def search(self, query: str) -> Steps:
        """
        Simulates other plans for the program and the cluster of a query. Yields `done`
        and `total`, numbers of plans, with `front`, all plans simulated so far; or
        `error`.
        """
        return _reporting_errors(lambda: self._search(query))

    def _answer(self, query: str) -> Steps:
        yield {"phase": "reading the program"}
        state = state_of(query, self._setup)
        module = self._programs(state.choice)
        cluster = self._cluster(state)
        yield {
            "fields": [f.to_json() for f in fields_of(state, module, cluster)],
            "query": state.query,
            "commands": state.commands,
        }
        key = state.query
        if key not in self._answers:
            found = list[Message]()
            for message in self._simulated(state, module):
                if "phase" not in message:
                    found.append(message)
                yield self._with_front(message, state)
            self._answers[key] = found
            if len(self._answers) > _KEPT:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(key)
            for message in self._answers[key]:
                yield self._with_front(message, state)

    def _with_front(self, message: Message, state: State) -> Message:
        """
        Adds the plans simulated so far to `message`, the part of an answer with the
        numbers.
        """
        if "numbers" not in message:
            return message
        return {**message, "front": self._seen.shown(state)}

    def _simulated(self, state: State, module: ModuleOp) -> Steps:
        """
        Simulates the settings in `state`, and yields the parts of the answer that come
        from the simulation.
        """
        yield {"phase": "distributing"}
        arguments = state.arguments()
        placed = module.clone()
        distribute_silently(placed, arguments)
        notes = read_notes(placed)
        placed = chosen_entry(placed, arguments.entry)
        yield {"phase": "simulating"}
        profiles = ProfileChoice.of(arguments.profile, cluster_of(placed))
        result = simulate(placed, profiles=profiles.names)
        if profiles.lacking:
            notes.append(f"{profiles.lacking}: times are those of data sheets")
        if sentence := accuracy_note(result):
            notes.append(sentence)
        self._seen.add(state, module, result)
        yield {"numbers": _numbers(result), "notes": notes}
        yield {"phase": "drawing"}
        data = report_data(result, state.choice.file, _BLOCKS)
        yield {"report": {n: v for n, v in data.items() if n not in _NOT_SHOWN}}

    def _search(self, query: str) -> Steps:
        state = state_of(query, self._setup)
        module = self._programs(state.choice)
        entry = chosen_entry(module, state.setup.entry)
        yield from search_steps(state, entry, self._cluster(state), self._seen)

    def _cluster(self, state: State) -> ClusterOp:
        key = state.cluster, state.devices
        if key not in self._clusters:
            self._clusters[key] = load_cluster(state.cluster, state.devices or None)
        return self._clusters[key]


_NOT_SHOWN = ("causes", "arguments", "sent", "configuration")
"""Parts of a report that the page does not draw."""


def _reporting_errors(steps: Callable[[], Steps]) -> Steps:
    """
    Yields the parts of an answer. An error becomes the last part, which the page shows.
    A bug of DistIR itself also prints a traceback in the terminal.
    """
    try:
        yield from steps()
    except (Exception, ArgSpecParseError) as error:
        message = error_message(error)
        if message.startswith("internal error") or os.environ.get("DISTIR_DEBUG"):
            traceback.print_exc()
        yield {"error": message}


def _numbers(result: Simulation) -> Message:
    """Returns the numbers of a step, as `distir simulate` prints them."""
    pairs = zip(
        result.reserved_memory_bytes,
        result.peak_memory_bytes,
        result.memory_bytes,
        strict=True,
    )
    # The device with the least memory left.
    reserved, peak, memory = max(pairs, key=lambda d: d[0] - d[2])
    return {
        "step_time_s": result.step_time_s,
        "peak_memory_bytes": peak,
        "step_time": seconds_text(result.step_time_s),
        "throughput": f"{result.throughput_samples_per_s:.4g}",
        "memory": bytes_text(peak),
        "reserved": bytes_text(reserved),
        "available": bytes_text(memory),
        "share": reserved / memory,
        "mfu": f"{100 * result.mfu:.3g} %",
        "exposed": f"{100 * result.exposed_communication:.3g} %",
        "bubble": f"{100 * result.bubble_fraction:.3g} %",
        "devices": len(result.devices),
        "ops": result.ops,
        "profiles": result.profiles,
        "fits": result.fits,
    }


def encoded(message: Message) -> bytes:
    """Returns a part of an answer as a line of JSON text."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
