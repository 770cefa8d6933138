"""
`distir show`: prints the layouts of a program's arguments, and the messages of its
devices.
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
        metavar="program.mlir",
        help="a distributed program; or a sequential one, which is distributed first if "
        "--cluster and options of `distir distribute` are given",
    )
    parser.add_argument(
        "--scope",
        default=None,
        metavar="PATTERN",
        help="only modules and arguments whose names match, such as '*.h.3.*', and each "
        "layer by itself; without it, layers that are alike are one line",
    )
    add_options(parser, SimulationOptions, ("json",), help="write the tables to a file")
    add_options(parser, EntryOptions)
    add_profile_argument(parser)
    add_cluster_arguments(parser, required=False)
    add_distribution_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from distir.interpreters.simulator import cluster_of
    from distir.interpreters.simulator.simulation import write_json
    from distir.sharding.mesh import meshes
    from distir.tools.reports.layout_tables import LayoutTables

    check_cluster_given(arguments)
    module = read_as_asked(arguments)
    profiles: tuple[str, ...] = ()
    if meshes(module):
        profiles = chosen_profiles(arguments.profile, cluster_of(module))
    name = str(arguments.program)
    tables = LayoutTables.of(module, name, arguments.scope, profiles)
    if arguments.json is not None:
        write_json(arguments.json, tables.to_json())
    tables.print()
    return 0
