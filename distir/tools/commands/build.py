"""`distir build`: makes a model of any size, without weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distir.tools.arguments import (
    non_negative_integer,
    non_negative_number,
    positive_integer,
)
from distir.tools.training_arguments import add_training_arguments, differentiate_pass

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

DTYPES = ("f32", "f16", "bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    models: Any = parser.add_subparsers(dest="model", required=True, metavar="MODEL")
    gpt = models.add_parser("gpt", help="a GPT-2 style decoder")
    for name in ("layers", "d-model", "heads", "vocab", "batch", "seq"):
        _add_size(gpt, name)
    gpt.add_argument(
        "--dropout",
        type=non_negative_number,
        metavar="P",
        help="ratio of embeddings, attention probabilities and residual branches that a "
        "training step sets to zero (default 0); attention is written out then",
    )
    gpt.add_argument(
        "--dropout-seed",
        type=non_negative_integer,
        metavar="N",
        help="seed of dropout's random numbers (default 0)",
    )
    gpt.add_argument(
        "--cache",
        action="store_true",
        help="each layer's keys and values are results too, for --decode to go on from",
    )
    gpt.add_argument(
        "--decode",
        type=positive_integer,
        metavar="N",
        help="the step that generates the next token from a cache of the keys and values of "
        "N tokens; with --seq 1",
    )
    _add_attention(gpt)
    _add_common(gpt)
    moe = models.add_parser(
        "moe", help="a decoder with GShard's mixtures of experts in every other layer"
    )
    for name in ("layers", "d-model", "heads", "experts", "vocab", "batch", "seq"):
        _add_size(moe, name)
    moe.add_argument(
        "--ffn",
        type=positive_integer,
        metavar="N",
        help="width inside an MLP or expert (default 4 times --d-model)",
    )
    moe.add_argument(
        "--capacity-factor",
        type=non_negative_number,
        default=1.0,
        metavar="X",
        help="places of an expert, in those that evenly dealt tokens need (default 1)",
    )
    _add_attention(moe)
    _add_common(moe)
    mlp = models.add_parser("mlp", help="dense layers of one width")
    for name in ("layers", "d-model", "batch"):
        _add_size(mlp, name)
    _add_common(mlp)


def _add_size(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(f"--{name}", type=positive_integer, required=True, metavar="N")


def _add_attention(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-fused-attention",
        action="store_true",
        help="write attention out in products and a softmax, instead of as one op",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="model.mlir"
    )
    add_training_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from distir.tools.files import write_program

    write_program(built(arguments), arguments.output)
    return 0


def built(arguments: argparse.Namespace) -> ModuleOp:
    """Returns the program that the arguments ask for. Raises DistIRError."""
    from distir.tools.files import apply_passes

    loss = "mse" if arguments.model == "mlp" else "cross_entropy"
    differentiate = differentiate_pass(arguments, loss)
    build = {"gpt": _gpt, "moe": _moe, "mlp": _mlp}[arguments.model]
    module = build(arguments, differentiate is not None)
    if differentiate is not None:
        apply_passes(module, differentiate)
    return module


def _sizes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the sizes that all transformers have, from the arguments."""
    names = ("layers", "d_model", "heads", "vocab", "batch", "dtype")
    return {name: getattr(arguments, name) for name in names}


def _gpt(arguments: argparse.Namespace, trains: bool) -> ModuleOp:
    from distir.errors import DistIRError
    from distir.frontends.builders import build_gpt
    from distir.frontends.gpt_decoding import build_gpt_decoding

    if arguments.dropout and not trains:
        raise DistIRError("--dropout is of use with --training only; add it")
    if arguments.dropout_seed is not None and not arguments.dropout:
        raise DistIRError("--dropout-seed is of use with --dropout only; add it")
    if trains and (arguments.decode or arguments.cache):
        raise DistIRError(
            "a cache of keys and values is for inference; leave out --training, or "
            "--decode and --cache"
        )
    if arguments.decode:
        if arguments.seq != 1 or arguments.cache:
            raise DistIRError(
                "--decode generates one token from a cache; add --seq 1 and leave out "
                "--cache"
            )
        return build_gpt_decoding(**_sizes(arguments), cached=arguments.decode)
    return build_gpt(
        **_sizes(arguments),
        seq=arguments.seq,
        dropout=arguments.dropout or 0.0,
        seed=arguments.dropout_seed or 0,
        cache=arguments.cache,
        fused_attention=not arguments.no_fused_attention,
    )


def _moe(arguments: argparse.Namespace, trains: bool) -> ModuleOp:
    from distir.frontends.builders import build_moe

    return build_moe(
        **_sizes(arguments),
        experts=arguments.experts,
        seq=arguments.seq,
        ffn=arguments.ffn,
        capacity_factor=arguments.capacity_factor,
        fused_attention=not arguments.no_fused_attention,
    )


def _mlp(arguments: argparse.Namespace, trains: bool) -> ModuleOp:
    from distir.frontends.builders import build_mlp

    return build_mlp(
        layers=arguments.layers,
        d_model=arguments.d_model,
        batch=arguments.batch,
        dtype=arguments.dtype,
    )
