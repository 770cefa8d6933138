"""`distir import`: an ONNX model becomes a sequential program and its weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.tools.arguments import dimension
from distir.tools.training_arguments import add_training_arguments, differentiate_pass


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument(
        "--dim",
        type=dimension,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="the size of a dynamic dimension; may be repeated",
    )
    parser.add_argument(
        "--no-outline",
        action="store_true",
        help="keep repeated layers unrolled instead of as one function",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        required=True,
        metavar="model.mlir",
        help="the program; its weights go beside it, to model.safetensors",
    )
    add_training_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from distir.frontends.onnx_importer import import_onnx
    from distir.tools.files import apply_passes, named_pass
    from distir.tools.reporting import progress

    differentiate = differentiate_pass(arguments)
    with progress(f"importing {arguments.model}"):
        imported = import_onnx(arguments.model, dict(arguments.dim))
    passes = ["fold-shapes"]
    if not arguments.no_outline:
        passes.append("outline-repeats")
    with progress("folding shapes, outlining repeated layers"):
        apply_passes(imported.module, *map(named_pass, passes))
    if differentiate is not None:
        with progress("differentiating"):
            apply_passes(imported.module, differentiate)
    with progress(f"writing {arguments.output}"):
        imported.save(arguments.output)
    return 0
