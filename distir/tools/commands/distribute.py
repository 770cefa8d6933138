"""`distir distribute`: a sequential program becomes a distributed one."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.tools.arguments import positive_integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="model.mlir")
    parser.add_argument(
        "--cluster",
        required=True,
        metavar="NAME|FILE",
        help="dgx2, dgx-a100, dgx-h100, dgx-h200, cpu, or an .mlir file with a "
        "device.cluster",
    )
    parser.add_argument(
        "--devices",
        type=positive_integer,
        metavar="N",
        help="grow the cluster by whole nodes to N devices",
    )
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
        choices=("none", "full", "selective"),
        default="none",
        help="what a training step computes again in its backward pass: nothing, whole "
        "layers, or what attention computes between its matrix products",
    )
    parser.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="split sequences over the tensor-parallel devices between the blocks",
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
                cluster=cluster.sym_name.data,
                shard=tuple(arguments.shard),
                zero=arguments.zero,
                checkpoint=arguments.checkpoint,
                sequence_parallel=arguments.sequence_parallel,
            ),
        )
    for text in read_notes(module):
        note(text)
    beside = keep_weights_reachable(module, arguments.program, arguments.output)
    if beside is not None:
        note(f"the weights are now also at {beside}, beside {arguments.output.name}")
    write_program(module, arguments.output)
    return 0
