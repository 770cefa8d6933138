"""`distir show`: how a program's arguments are split, and what its devices send."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.tools.arguments import (
    add_cluster_arguments,
    add_profile_argument,
    chosen_profiles,
    output_file,
)
from distir.tools.distribution import (
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
    parser.add_argument(
        "--json",
        type=output_file,
        metavar="out.json",
        help="write the tables to a file",
    )
    add_profile_argument(parser)
    add_cluster_arguments(parser, required=False)
    add_distribution_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from fnmatch import fnmatchcase

    from distir.errors import DistIRError
    from distir.interpreters.simulator import cluster_of, simulate
    from distir.interpreters.simulator.reports.argument_layouts import argument_layouts
    from distir.interpreters.simulator.reports.communication_report import (
        communication_of,
    )
    from distir.interpreters.simulator.simulation import write_json
    from distir.sharding.mesh import meshes
    from distir.tools.layout_tables import print_communication, print_layouts
    from distir.tools.reporting import progress

    check_cluster_given(arguments)
    scope = arguments.scope
    module = read_as_asked(arguments)
    layouts = argument_layouts(module, by_layer=scope is not None)
    sent = None
    if meshes(module):
        profiles = chosen_profiles(arguments.profile, cluster_of(module))
        with progress("adding up what devices send"):
            result = simulate(module, profiles=profiles)
            sent = communication_of(result, by_layer=scope is not None)
    if scope is not None:
        layouts = [entry for entry in layouts if fnmatchcase(entry.name, scope)]
        of_scope = sent or []
        matching = [entry for entry in of_scope if fnmatchcase(entry.scope, scope)]
        if not layouts and not matching:
            raise DistIRError(
                f"nothing of {arguments.program} matches --scope {scope!r}; without "
                f"--scope, `distir show` lists the names"
            )
        sent = None if sent is None else matching
    if arguments.json is not None:
        content = {"arguments": [entry.to_json() for entry in layouts]}
        if sent is not None:
            content["communication"] = [entry.to_json() for entry in sent]
        write_json(arguments.json, content)
    print_layouts(layouts)
    if sent is not None:
        print_communication(sent)
    return 0
