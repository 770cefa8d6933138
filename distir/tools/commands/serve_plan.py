"""`distir serve-plan`: finds the best plan for a service that generates tokens."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.planning.serving.options import ServiceFiles, ServiceOptions
from distir.tools.arguments.cluster import add_cluster_arguments
from distir.tools.arguments.declared import add_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program",
        type=Path,
        metavar="decode.mlir",
        help="a decoder: a program for inference (--serve), or a forward pass of "
        "`distir build` or `distir import`, whose steps are priced for all batches and "
        "contexts",
    )
    add_cluster_arguments(parser)
    add_options(parser, ServiceOptions)
    add_options(parser, ServiceFiles)


def run(arguments: argparse.Namespace) -> int:
    from distir.interpreters.simulator.simulation import write_json
    from distir.tools.files import read_program
    from distir.tools.reports.reporting import note, progress
    from distir.tools.reports.serving_report import write_serving_report
    from distir.tools.reports.serving_tables import print_service
    from distir.tools.serving import check_service_arguments, planned_service

    check_service_arguments(arguments)
    path: Path = arguments.program
    with progress(f"reading {path}"):
        module = read_program(path)
    planned = planned_service(module, path.name, arguments, note)
    if arguments.json is not None:
        write_json(arguments.json, planned.to_json())
    if arguments.html is not None:
        write_serving_report(planned, arguments.html)
    print_service(planned)
    return 0 if planned.result.best is not None else 1
