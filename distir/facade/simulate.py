"""`distir.simulate`: predicts the time and memory of a program on its cluster."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from functools import cached_property
from html import escape
from io import StringIO
from pathlib import Path
from typing import Unpack

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError, one_of
from distir.facade.model_program import ModelProgram
from distir.interpreters.simulator import (
    Difference,
    MemoryReport,
    Simulation,
    cluster_of,
    write_html,
)
from distir.interpreters.simulator import simulate as run_simulator
from distir.interpreters.simulator.profiles.files import ProfileChoice
from distir.interpreters.simulator.reports.html_report import html_report
from distir.interpreters.simulator.reports.time_report import TICKS_PER_SECOND
from distir.interpreters.simulator.simulation import write_json
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import SimulateOptions
from distir.tools.reports.simulation_tables import print_difference
from distir.transforms.expert_shards import assume_imbalance

_OF_FILES = ("json", "trace", "html", "memory", "diff")
"""The options of the command whose place methods of the result take."""

_KINDS = (".html", ".json")


@dataclass(frozen=True, eq=False)
class SimulatedProgram:
    """
    The predicted cost of a distributed program: the `program`, and its `simulation`.
    """

    program: ModelProgram
    simulation: Simulation

    @property
    def module(self) -> ModuleOp:
        """The IR of the distributed program."""
        return self.program.module

    @property
    def step_time_s(self) -> float:
        """The time of a step, in seconds."""
        return self.simulation.step_time_s

    @property
    def memory_bytes(self) -> int:
        """The peak memory, in bytes, of the device that uses the most."""
        return max(self.simulation.peak_memory_bytes)

    @cached_property
    def memory(self) -> MemoryReport:
        """A report on the contents of memory at the peak."""
        return MemoryReport.of(self.simulation)

    def save(self, path: str | Path) -> None:
        """
        Writes a report for a browser if the suffix of `path` is `.html`, or the numbers
        as JSON if the suffix is `.json`. Raises DistIRError for other suffixes, or if
        the file cannot be written.
        """
        path = Path(path)
        if one_of("ending of a report", path.suffix, _KINDS) == ".html":
            write_html(self.simulation, path, self.program.name)
        else:
            more = {"memory": self.memory.to_json()}
            write_json(path, self.simulation.to_json() | more)

    def save_trace(self, path: str | Path) -> None:
        """
        Writes a timeline for ui.perfetto.dev to the file `path`. Raises DistIRError if
        the file cannot be written.
        """
        self.simulation.write_trace(path)

    def difference(self, other: SimulatedProgram) -> SimulatedDifference:
        """
        Returns by how much the step of `other` is longer than the step of this program,
        and the causes. Both programs are simulated again.
        """
        found = Difference.of(self.simulation, other.simulation)
        return SimulatedDifference(found, (self.program.name, other.program.name))

    def __str__(self) -> str:
        return (
            f"{self.step_time_s:.4g} s a step, {self.memory_bytes / 1e9:.4g} GB on the "
            f"fullest of {len(self.simulation.devices)} devices"
        )

    def _repr_html_(self) -> str:
        """
        Returns HTML for display in a notebook: the report that `save` writes, in a
        frame.
        """
        page = html_report(self.simulation, self.program.name)
        return (
            f"<p>{escape(str(self))}</p><iframe style='width:100%;height:600px;border:0' "
            f'srcdoc="{escape(page)}"></iframe>'
        )


@dataclass(frozen=True, eq=False)
class SimulatedDifference:
    """
    The differences between the costs of two programs. `names` holds the names of both.
    `str()` gives the tables of `distir simulate --diff`.
    """

    difference: Difference
    names: tuple[str, str]

    @property
    def step_time_s(self) -> float:
        """
        The step time of the second program minus the step time of the first, in
        seconds.
        """
        return self.difference.step / TICKS_PER_SECOND

    def save(self, path: str | Path) -> None:
        """
        Writes the comparison to a JSON file. Raises DistIRError if the file cannot be
        written.
        """
        write_json(Path(path), self.difference.to_json())

    def __str__(self) -> str:
        text = StringIO()
        print_difference(self.difference, self.names, text)
        return text.getvalue()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def simulate(
    program: ModelProgram | str | Path, **options: Unpack[SimulateOptions]
) -> SimulatedProgram:
    """
    Simulates a distributed program on its cluster. A sequential program is distributed
    first, with the options of `distir distribute`. `profile` (by default the profiles
    that the cluster names) and `flat` are options of the command `distir simulate`.
    Raises DistIRError if the program cannot be simulated.
    """
    wrong = [name for name in _OF_FILES if name in options]
    if wrong:
        raise DistIRError(
            f"distir.simulate: {', '.join(wrong)} is an option of the command; the "
            f"result has save, save_trace, memory and difference"
        )
    source = ModelProgram.of(program)
    given = command_options("simulate", "simulate", [source.name], options)
    if given.expert_imbalance is not None:
        module = source.module.clone()
        assume_imbalance(module, given.expert_imbalance)
        source = source.with_module(module)
    source = distributed_if_asked(source, given, "simulate")
    profiles = ProfileChoice.of(given.profile, cluster_of(source.module)).names
    found = run_simulator(source.module, flat=given.flat, profiles=profiles)
    return SimulatedProgram(source, found)


def distributed_if_asked(
    program: ModelProgram, given: Namespace, function: str
) -> ModelProgram:
    """
    Returns the entry function of a program that the option `entry` in `given` selects,
    distributed if `given` has a cluster. Without a cluster, the entry is returned
    unchanged, and DistIRError is raised if `given` has options of `distir distribute`.
    `function` is the name of the public function, for the message.
    """
    from distir.tools.arguments.distribution import (
        distribute_as_asked,
        distributed_entry,
        given_options,
    )

    if given.cluster is not None:
        module = distributed_entry(program.module.clone(), given, distribute_as_asked)
        return program.with_module(module)
    if asked := given_options(given):
        raise DistIRError(
            f"distir.{function}: {' and '.join(asked)} distributes a sequential program; say "
            f"over which cluster with cluster="
        )
    return program.with_module(distributed_entry(program.module, given, None))
