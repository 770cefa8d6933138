"""`distir run`: a distributed program on real processes."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="dist.mlir")
    parser.add_argument(
        "--backend",
        choices=("gloo", "nccl"),
        required=True,
        help="gloo on CPUs, nccl with one GPU per rank",
    )
