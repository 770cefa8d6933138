"""`distir cluster`: writes the description of a cluster from a few numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from distir.tools.arguments.types import (
    number_of_bytes,
    output_program,
    positive_integer,
    rate,
)

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kind",
        required=True,
        metavar="KIND",
        help="the kind of device of a built-in cluster: A100, B200, H100, MI300X, ...",
    )
    parser.add_argument(
        "--nodes",
        type=positive_integer,
        default=1,
        metavar="N",
        help="the number of nodes (default 1)",
    )
    parser.add_argument(
        "--devices-per-node",
        type=positive_integer,
        default=8,
        metavar="N",
        help="the number of devices of a node (default 8)",
    )
    parser.add_argument(
        "--nic",
        type=rate,
        metavar="RATE",
        help="what one network adapter sends in each direction, such as 200Gb/s or 25GB/s; "
        "needed for more than one node",
    )
    parser.add_argument(
        "--nics-per-node",
        type=positive_integer,
        metavar="N",
        help="network adapters of a node; fewer than devices are shared (default: one per "
        "device)",
    )
    parser.add_argument(
        "--nic-kind",
        metavar="KIND",
        help="what the network is, by which profiles know it: infiniband, roce, ethernet, ... "
        "(default: as in the built-in cluster of these devices)",
    )
    parser.add_argument(
        "--link",
        type=rate,
        metavar="RATE",
        help="what a device sends in each direction to the others of its node (default: as "
        "in the built-in cluster of these devices)",
    )
    parser.add_argument(
        "--memory",
        type=number_of_bytes,
        metavar="BYTES",
        help="usable memory of a device, such as 40GB (default: that of the kind)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the cluster's name (default: as the file is called)",
    )
    parser.add_argument(
        "-o", dest="output", type=output_program, required=True, metavar="my.mlir"
    )


def described(arguments: argparse.Namespace, name: str) -> ModuleOp:
    """
    Returns a module with the cluster that the arguments describe. The default of the
    cluster's name is `name`. Raises DistIRError for numbers that do not fit each other.
    """
    from xdsl.dialects.builtin import ModuleOp

    from distir.hardware.description import ClusterDescription
    from distir.tools.files import verify

    description = ClusterDescription(
        name if arguments.name is None else arguments.name,
        arguments.kind,
        arguments.nodes,
        arguments.devices_per_node,
        arguments.nic,
        arguments.nics_per_node,
        arguments.nic_kind,
        arguments.link,
        arguments.memory,
    )
    module = ModuleOp([description.build()])
    verify(module)
    return module


def run(arguments: argparse.Namespace) -> int:
    import re

    from distir.tools.files import write_program

    output: Path = arguments.output
    name = re.sub(r"\W", "_", output.stem)
    module = described(arguments, name if name.isidentifier() else f"cluster_{name}")
    write_program(module, output)
    devices = arguments.nodes * arguments.devices_per_node
    print(f"wrote {output}: {devices} {arguments.kind}, for --cluster {output}")
    return 0
