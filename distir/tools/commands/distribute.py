"""`distir distribute`: turns a sequential program into a distributed one."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.program.options import EntryOptions
from distir.tools.arguments.cluster import add_cluster_arguments
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.distribution import add_distribution_arguments
from distir.tools.arguments.types import output_program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="model.mlir")
    add_cluster_arguments(parser, required=False)
    add_distribution_arguments(parser)
    add_options(parser, EntryOptions)
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="plan.json",
        help="follow a plan that `distir search --save-plan` or distir.search wrote, "
        "instead of --cluster and the other options",
    )
    parser.add_argument(
        "-o", dest="output", type=output_program, required=True, metavar="dist.mlir"
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError
    from distir.planning.plans.saved_plan import SavedPlan
    from distir.program.entries import chosen_entry
    from distir.tools.arguments.distribution import distributed_as_asked, given_options
    from distir.tools.files import read_program, write_program
    from distir.tools.reports.reporting import note, progress

    given = given_options(arguments)
    if arguments.plan is not None and (given or arguments.cluster is not None):
        raise DistIRError(
            f"the plan says how to distribute, so that {['--cluster', *given][-1]} "
            f"cannot be given beside --plan"
        )
    if arguments.plan is None and arguments.cluster is None:
        raise DistIRError(
            "distribute needs --cluster, what to distribute over, or --plan, what a search "
            "found"
        )
    plan = None if arguments.plan is None else SavedPlan.load(arguments.plan)
    with progress(f"reading {arguments.program}"):
        module = read_program(arguments.program)
    if arguments.entry is not None:
        module = chosen_entry(module, arguments.entry)
    if plan is None:
        distributed_as_asked(module, arguments)
    else:
        with progress(f"following {arguments.plan}"):
            plan.distribute(module, str(arguments.program))
    with progress(f"writing {arguments.output}"):
        beside = write_program(module, arguments.output, arguments.program)
    if beside is not None:
        note(f"the weights are now also at {beside}, beside {arguments.output.name}")
    return 0
