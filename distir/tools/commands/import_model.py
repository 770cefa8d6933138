"""`distir import`: turns a model into a sequential program and its weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from distir.frontends.options import ModuleOptions
from distir.gradients.options import StepOptions
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.model import (
    add_transformers_arguments,
    add_trust_arguments,
    imported_entries,
    imported_model,
    source_of,
)
from distir.tools.arguments.training import (
    add_float8_arguments,
    add_training_arguments,
    differentiate_pass,
    float8_passes,
)
from distir.tools.arguments.types import (
    dimension,
    named_number,
    output_program,
    positive_number,
)
from distir.transforms.precision.options import PrecisionOptions

if TYPE_CHECKING:
    from distir.frontends.imported_model import ImportedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=Path,
        nargs="?",
        metavar="MODEL",
        help="an ONNX file, a file of StableHLO that ends in .mlir, or FILE.py:FUNCTION, a function that returns (module, args) or "
        "(module, args, kwargs): a PyTorch module and example inputs",
    )
    add_transformers_arguments(parser)
    parser.add_argument(
        "--dim",
        type=dimension,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="the size of a dynamic dimension of an ONNX file; may be repeated",
    )
    parser.add_argument(
        "--value",
        type=named_number,
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="what an input of an ONNX file that is one number always is, such as a sampling "
        "rate: the program does not take it, and what depends on it is known; may be repeated",
    )
    parser.add_argument(
        "--ignore-shardings",
        action="store_true",
        help="do not read the shardings (sdy, GSPMD) in a file of StableHLO as requests",
    )
    parser.add_argument(
        "--no-outline",
        action="store_true",
        help="keep repeated layers unrolled instead of as one function",
    )
    add_options(parser, StepOptions, ("fused_attention",))
    parser.add_argument(
        "--capacity-factor",
        type=positive_number,
        metavar="F",
        help="of each sequence an expert takes at most F times the tokens that evenly dealt "
        "tokens would give it, and no more (default: all that choose it)",
    )
    parser.add_argument(
        "--training-mode",
        action="store_true",
        help="each part of a module in its own mode, without a training step: parts in train() "
        "keep their dropout and use the statistics of the batch (default: evaluation mode); "
        "`distir schedule --training` makes a training step of it",
    )
    add_options(parser, ModuleOptions, ("equal_features",))
    add_trust_arguments(parser)
    add_options(parser, PrecisionOptions, ("dtype",))
    add_options(parser, PrecisionOptions, ("autocast",))
    add_float8_arguments(parser)
    parser.add_argument(
        "-o",
        dest="output",
        type=output_program,
        required=True,
        metavar="model.mlir",
        help="the program; its weights go beside it, to model.safetensors",
    )
    group = add_training_arguments(parser)
    add_options(group, StepOptions, ("dropout_seed",), optional=True)
    group.add_argument(
        "--trainable",
        action="append",
        default=[],
        metavar="PATTERN",
        help="train the weights with such names (* and ? stand for anything), whatever "
        "the file says of them and also where --frozen matches; may be repeated",
    )
    group.add_argument(
        "--frozen",
        action="append",
        default=[],
        metavar="PATTERN",
        help="do not train the weights with such names; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.tools.reports.reporting import note, progress
    from distir.tools.reports.training_report import report_training

    imported = prepared_model(arguments)
    with progress(f"writing {arguments.output}"):
        imported.save(arguments.output)
    if arguments.training:
        report_training(imported)
    for remark in imported.notes:
        note(remark)
    if imported.valueless:
        note(
            f"{len(imported.valueless)} parameters and constants have no values, such as "
            f"{imported.valueless[0]!r}; `distir run` draws them, as for `distir build`"
        )
    return 0


def prepared_model(arguments: argparse.Namespace) -> ImportedModel:
    """
    Imports the model that the arguments name, and prepares its program with the options
    in the arguments. Raises DistIRError if one of the two steps fails.
    """
    from distir.errors import DistIRError
    from distir.frontends.imported_model import joined_models

    differentiate_pass(arguments)  # refuses options before the file is read
    for option in ("trainable", "frozen"):
        if getattr(arguments, option) and not arguments.training:
            raise DistIRError(f"--{option} is of use with --training only; add it")
    if not arguments.serve:
        imported = imported_model(arguments)
        prepare(imported, arguments)
        return imported
    entries = imported_entries(arguments)
    for entry in entries.values():
        prepare(entry, arguments)
    return joined_models(entries)


def prepare(imported: ImportedModel, arguments: argparse.Namespace) -> None:
    """
    Prepares an imported program, in place, with the options in the arguments: folds
    shapes, raises patterns, converts floating-point types, outlines repeated layers
    into functions, and differentiates the program. Raises DistIRError if one of these
    steps fails.
    """
    from distir.dialects.train_ops.dropout import DropoutOp
    from distir.errors import DistIRError
    from distir.frontends.imported_model import in_types_of
    from distir.passes.autocast import precision_passes
    from distir.passes.raise_patterns import RaisePatternsPass
    from distir.tools.files import apply_passes, named_pass
    from distir.tools.reports.reporting import progress
    from distir.transforms.precision.cache_quantization import quantize_caches
    from distir.transforms.precision.weight_quantization import (
        QuantizedWeights,
        quantize_weights,
    )

    module = imported.module
    differentiate = differentiate_pass(arguments)
    passes = [
        named_pass("fold-shapes"),
        RaisePatternsPass(attention=arguments.fused_attention),
        *precision_passes(arguments.dtype, arguments.autocast),
        *float8_passes(arguments),
    ]
    outline = [] if arguments.no_outline else [named_pass("outline-repeats")]
    with progress("folding shapes, outlining repeated layers"):
        apply_passes(module, *passes)
        imported.weights = in_types_of(module, imported.weights)
        if arguments.weights_dtype is not None:
            quantized = quantize_weights(
                module, arguments.weights_dtype, arguments.weights_group
            )
            imported.weights = QuantizedWeights(imported.weights, quantized)
        if arguments.cache_dtype is not None:
            quantize_caches(module, arguments.cache_dtype)
        apply_passes(module, *outline)
    imported.weights = in_types_of(module, imported.weights)
    expand = [] if arguments.float8 is None else [named_pass("expand-float8")]
    if differentiate is None:
        apply_passes(module, *expand)
        return
    with progress("differentiating"):
        apply_passes(module, differentiate, *expand)
    drops = any(isinstance(op, DropoutOp) for op in module.walk())
    if arguments.dropout_seed is not None and not drops:
        raise DistIRError(
            f"--dropout-seed is for models with dropout, but {source_of(arguments)} has "
            f"none in training mode; export it in training mode, or leave the seed out"
        )
