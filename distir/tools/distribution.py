"""How a program is to be distributed: the options that several commands take."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from distir.tools.arguments import positive_integer

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def add_distribution_arguments(parser: ArgumentParser) -> None:
    """The options of `distribute`, but for the cluster."""
    parser.add_argument(
        "-d", type=positive_integer, default=1, help="data-parallel degree (default 1)"
    )
    parser.add_argument(
        "-t",
        type=positive_integer,
        default=1,
        help="tensor-parallel degree (default 1)",
    )
    parser.add_argument(
        "-p", type=positive_integer, default=1, help="pipeline ranks (default 1)"
    )
    parser.add_argument(
        "-k",
        type=positive_integer,
        default=1,
        help="micro-batches that a batch is split into (default 1); with one pipeline "
        "rank they accumulate gradients",
    )
    parser.add_argument(
        "--schedule",
        default="",
        metavar="NAME",
        help="gpipe, 1f1b (default of a training step), interleaved-1f1b, zb-h1, "
        "interleaved-zero-bubble, zbv, dualpipev, or forward (default of inference)",
    )
    parser.add_argument(
        "--chunks",
        type=positive_integer,
        metavar="N",
        help="pipeline stages per rank (default: the fewest that the schedule can have)",
    )
    parser.add_argument(
        "--schedule-file",
        default="",
        metavar="FILE.csv",
        help="a schedule in the CSV format of PyTorch's pipelining, a line per rank",
    )
    parser.add_argument(
        "--stages",
        action="append",
        default=[],
        metavar="SCOPE",
        help="the scope that the next pipeline stage begins with, once for each stage but "
        "the first; or `uniform`, equal numbers of layers, or `search`, the fastest that is "
        "found (default: equal work)",
    )
    parser.add_argument(
        "--blocking-sends",
        action="store_true",
        help="devices wait for each other in a send instead of computing meanwhile",
    )
    parser.add_argument(
        "--shard",
        action="append",
        default=[],
        metavar="NAME:DIM=AXIS[:RUN]",
        help="split dimension DIM of argument NAME over mesh axis AXIS (d or t), in runs "
        "of RUN elements; may be repeated. Refused where it cannot be done",
    )
    parser.add_argument(
        "--zero",
        type=int,
        choices=(0, 1, 2, 3),
        default=0,
        help="ZeRO stage of a training step: split optimizer states (1), gradients (2) "
        "and parameters (3) over the data-parallel devices",
    )
    parser.add_argument(
        "--checkpoint",
        choices=("none", "full", "whole", "selective"),
        default="none",
        help="what a training step computes again in its backward pass: nothing, what its "
        "layers' gradients need (full), all of the layers as PyTorch does (whole), or what "
        "attention computes between its matrix products (selective)",
    )
    parser.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="split sequences over the tensor-parallel devices between the blocks",
    )
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="run communication while devices compute, where the simulator says that it "
        "is faster and fits into memory",
    )


def distributed_as_asked(module: ModuleOp, arguments: Namespace) -> None:
    """
    Distributes a program, in place, over the cluster and with the options that a command
    was given, and prints the remarks of the passes. Raises DistIRError.
    """
    from distir.errors import DistIRError
    from distir.hardware import load_cluster
    from distir.passes.distribute import DistributePass
    from distir.planning.annotations import read_notes
    from distir.planning.programs import replace_cluster
    from distir.tools.files import apply_passes
    from distir.tools.reporting import note, progress

    cluster = load_cluster(arguments.cluster, arguments.devices)
    if module.body.block.first_op is None:
        raise DistIRError(f"{arguments.program} holds no program")
    replace_cluster(module, cluster)
    given = {
        field.name: getattr(arguments, field.name)
        for field in fields(DistributePass)
        if field.name != "cluster"
    }
    options: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in given.items()
    }
    with progress("distributing"):
        apply_passes(module, DistributePass(cluster=cluster.sym_name.data, **options))
    for text in read_notes(module):
        note(text)
