"""`distir lower`: a distributed program becomes a PyTorch package."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="dist.mlir")
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="DIR")
