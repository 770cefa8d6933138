"""
`distir simulate`: predicts the cost of a distributed program on its cluster. A
sequential program is first distributed with the given options.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.interpreters.simulator.options import SimulationOptions
from distir.program.options import EntryOptions
from distir.tools.arguments.cluster import (
    add_cluster_arguments,
    add_profile_argument,
    chosen_profiles,
)
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.distribution import (
    add_distribution_arguments,
    check_cluster_given,
    read_as_asked,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program",
        type=Path,
        nargs="?",
        metavar="program.mlir",
        help="a distributed program; or a sequential one, which is distributed first, with "
        "--cluster and the options of `distir distribute`",
    )
    add_options(parser, SimulationOptions, ("json", "trace", "html"))
    parser.add_argument(
        "--memory",
        action="store_true",
        help="show the contents of memory at the peak, by kind and module, and options that would "
        "take less",
    )
    parser.add_argument(
        "--diff",
        type=Path,
        nargs=2,
        metavar=("a.mlir", "b.mlir"),
        help="say why the second program is slower or faster than the first",
    )
    add_options(parser, SimulationOptions, ("flat",))
    add_options(parser, EntryOptions)
    add_profile_argument(parser)
    add_cluster_arguments(parser, required=False)
    add_distribution_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError

    if (arguments.program is None) == (arguments.diff is None):
        raise DistIRError(
            "give one program to simulate, or two to compare with --diff a.mlir b.mlir"
        )
    check_cluster_given(arguments)
    if arguments.diff is not None:
        if arguments.cluster is not None:
            raise DistIRError(
                "--diff compares two distributed programs; leave out --cluster and the "
                "options that go with it"
            )
        return _difference(arguments)
    return _one(arguments)


def _one(arguments: argparse.Namespace) -> int:
    from distir.interpreters.simulator import (
        MemoryReport,
        cluster_of,
        simulate,
        write_html,
    )
    from distir.interpreters.simulator.reports.compared_runs import accuracy_note
    from distir.interpreters.simulator.simulation import write_json
    from distir.tools.reports.reporting import note, progress
    from distir.tools.reports.simulation_tables import print_memory, print_simulation

    module = read_as_asked(arguments)
    profiles = chosen_profiles(arguments.profile, cluster_of(module))
    with progress("simulating"):
        result = simulate(module, flat=arguments.flat, profiles=profiles)
        memory = MemoryReport.of(result) if arguments.memory else None
        if arguments.json is not None:
            more = {} if memory is None else {"memory": memory.to_json()}
            write_json(arguments.json, result.to_json() | more)
        if arguments.trace is not None:
            result.write_trace(arguments.trace)
        if arguments.html is not None:
            write_html(result, arguments.html, arguments.program.name)
    print_simulation(result)
    if sentence := accuracy_note(result):
        note(sentence)
    if memory is not None:
        print_memory(memory)
    return 0


def _difference(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError
    from distir.interpreters.simulator import (
        Difference,
        Simulation,
        cluster_of,
        simulate,
    )
    from distir.interpreters.simulator.simulation import write_json
    from distir.program.entries import chosen_entry
    from distir.tools.files import read_program
    from distir.tools.reports.reporting import progress
    from distir.tools.reports.simulation_tables import print_difference
    from distir.transforms.expert_shards import assume_imbalance

    if arguments.trace is not None or arguments.html is not None or arguments.memory:
        raise DistIRError(
            "--diff goes with --json and --flat only; simulate the programs one by one "
            "for --trace, --html and --memory"
        )

    def simulated(path: Path) -> Simulation:
        with progress(f"reading {path}"):
            module = chosen_entry(read_program(path), arguments.entry)
        assume_imbalance(module, arguments.expert_imbalance)
        profiles = chosen_profiles(arguments.profile, cluster_of(module))
        with progress("simulating"):
            return simulate(module, flat=arguments.flat, profiles=profiles)

    first, second = arguments.diff
    difference = Difference.of(simulated(first), simulated(second))
    if arguments.json is not None:
        write_json(arguments.json, difference.to_json())
    print_difference(difference, (first.name, second.name))
    return 0
