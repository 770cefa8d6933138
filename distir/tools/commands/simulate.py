"""`distir simulate`: what a distributed program costs on its cluster."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="dist.mlir")
    parser.add_argument(
        "--json", type=Path, metavar="out.json", help="write the numbers to a file"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="trace.json",
        help="write a timeline for chrome://tracing or ui.perfetto.dev",
    )
