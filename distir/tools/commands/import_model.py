"""`distir import`: an ONNX model becomes a sequential program and its weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.tools.arguments import dimension


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


def run(arguments: argparse.Namespace) -> int:
    from xdsl.dialects.builtin import StringAttr

    from distir.dialects.dist import WEIGHTS
    from distir.frontends.onnx_importer import import_onnx
    from distir.passes.fold_shapes import FoldShapesPass
    from distir.passes.outline_repeats import OutlineRepeatsPass
    from distir.tools.files import apply_passes, write_program
    from distir.tools.reporting import progress
    from distir.weights import save_weights

    output: Path = arguments.output
    with progress(f"importing {arguments.model}"):
        imported = import_onnx(arguments.model, dict(arguments.dim))
    with progress("folding shapes, outlining repeated layers"):
        passes = [FoldShapesPass()]
        if not arguments.no_outline:
            passes.append(OutlineRepeatsPass())
        apply_passes(imported.module, *passes)
    if imported.weights:
        weights = output.with_suffix(".safetensors")
        save_weights(weights, imported.weights)
        imported.module.attributes[WEIGHTS] = StringAttr(weights.name)
    write_program(imported.module, output)
    return 0
