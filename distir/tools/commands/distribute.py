"""`distir distribute`: a sequential program becomes a distributed one."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.tools.arguments import add_cluster_arguments, positive_integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="model.mlir")
    add_cluster_arguments(parser)
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
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="dist.mlir"
    )


def run(arguments: argparse.Namespace) -> int:
    from xdsl.dialects.builtin import ModuleOp

    from distir.dialects.device import ClusterOp
    from distir.errors import DistIRError
    from distir.hardware import load_cluster
    from distir.passes.annotations import read_notes
    from distir.passes.distribute import DistributePass
    from distir.tools.files import (
        apply_passes,
        keep_weights_reachable,
        read_program,
        write_program,
    )
    from distir.tools.reporting import note, progress

    def replace_cluster(module: ModuleOp, cluster: ClusterOp) -> None:
        for op in list(module.body.block.ops):
            if isinstance(op, ClusterOp):
                op.detach()
                op.erase()
        first = module.body.block.first_op
        if first is None:
            raise DistIRError(f"{arguments.program} holds no program")
        module.body.block.insert_op_before(cluster, first)

    with progress(f"reading {arguments.program}"):
        module = read_program(arguments.program)
        cluster = load_cluster(arguments.cluster, arguments.devices)
    replace_cluster(module, cluster)
    with progress("distributing"):
        apply_passes(
            module,
            DistributePass(
                d=arguments.d,
                t=arguments.t,
                p=arguments.p,
                k=arguments.k,
                cluster=cluster.sym_name.data,
                shard=tuple(arguments.shard),
                zero=arguments.zero,
                checkpoint=arguments.checkpoint,
                sequence_parallel=arguments.sequence_parallel,
                schedule=arguments.schedule,
                chunks=arguments.chunks,
                stages=tuple(arguments.stages),
                schedule_file=arguments.schedule_file,
                blocking_sends=arguments.blocking_sends,
                overlap=arguments.overlap,
            ),
        )
    for text in read_notes(module):
        note(text)
    beside = keep_weights_reachable(module, arguments.program, arguments.output)
    if beside is not None:
        note(f"the weights are now also at {beside}, beside {arguments.output.name}")
    write_program(module, arguments.output)
    return 0
