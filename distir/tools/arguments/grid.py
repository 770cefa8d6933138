"""The command-line options that select the plans of the grid for a search or a tuning."""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError

from distir.tools.arguments.types import names, positive_integer, positive_integers


def _degrees(text: str) -> tuple[int, int, int]:
    found = positive_integers(text)
    if len(found) != 3:
        raise ArgumentTypeError(f"{text!r} is not of the form D,T,P")
    return found[0], found[1], found[2]


def _stages(text: str) -> tuple[int, ...]:
    if any(part not in ("0", "1", "2", "3") for part in text.split(",")):
        raise ArgumentTypeError(f"{text!r} is not a list of ZeRO stages from 0 to 3")
    return tuple(int(part) for part in text.split(","))


def add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the grid, from which `SearchOptions` and degrees are made."""
    grid = parser.add_argument_group("the grid")
    grid.add_argument(
        "--world-size",
        type=positive_integer,
        metavar="N",
        help="devices that each configuration uses: all r x d x e x c x t x p = N (default: "
        "those of --devices, or all of the cluster)",
    )
    grid.add_argument(
        "--degrees",
        type=_degrees,
        action="append",
        default=[],
        metavar="D,T,P",
        help="only these data-parallel, tensor-parallel and pipeline degrees; may be "
        "repeated",
    )
    grid.add_argument(
        "--micro-batches",
        type=positive_integers,
        default=(),
        metavar="K,...",
        help="numbers of micro-batches of a pipeline (default 2,4,...,128); if given, a "
        "training step accumulates gradients on a single pipeline rank too",
    )
    grid.add_argument(
        "--zero",
        type=_stages,
        default=(),
        metavar="STAGE,...",
        help="ZeRO stages of a training step (default 0; with --auto all)",
    )
    grid.add_argument(
        "--checkpoint",
        type=names,
        default=(),
        metavar="POLICY,...",
        help="what a training step recomputes: none, full, whole, selective, products, in "
        "a part of its layers full:0.5, in so many of each run of layers full:4/6+0/6, or by ops, "
        "save:onnx.MatMul+train.attention (default none; with --auto none, selective, products "
        "and full, and mixtures of two of the given ones where memory binds)",
    )
    grid.add_argument(
        "--schedules",
        type=names,
        default=(),
        metavar="NAME,...",
        help="pipeline schedules (default: 1f1b, or forward for inference)",
    )
    grid.add_argument(
        "-c",
        type=positive_integers,
        default=(),
        metavar="C,...",
        help="context-parallel degrees, for long sequences, with keys that are gathered or go "
        "around (default 1; with --auto all powers of two where sequences are long)",
    )
    grid.add_argument(
        "-e",
        type=positive_integers,
        default=(),
        metavar="E,...",
        help="expert-parallel degrees, for mixtures of experts (default 1; with --auto all that "
        "divide the number of experts)",
    )
    grid.add_argument(
        "-r",
        type=positive_integers,
        default=(),
        metavar="R,...",
        help="numbers of groups of devices that each hold all that ZeRO splits over -d, as nodes "
        "may (default 1; with --auto all)",
    )
    grid.add_argument(
        "--no-sync",
        type=names,
        default=(),
        metavar="off,on",
        help="whether ZeRO 3 adds up whole gradients over micro-batches, and reduces them once: "
        "off, on or both (default off; with --auto both)",
    )
    grid.add_argument(
        "--offload-states",
        type=names,
        default=(),
        metavar="off,on",
        help="whether the optimizer's states are in the host's memory: off, on or both (default "
        "off; with --auto both, on where a step does not fit otherwise)",
    )
    grid.add_argument(
        "--overlap",
        type=names,
        default=(),
        metavar="off,on",
        help="whether communication overlaps computation: off, on or both (default off; "
        "with --auto both)",
    )
    grid.add_argument(
        "--buckets",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="send neighbouring tensors, such as the gradients of a layer, in one message "
        "(default), as `distir distribute` does, or each tensor in a message of its own",
    )


def add_jobs_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--jobs`: the number of processes that simulate."""
    parser.add_argument(
        "--jobs",
        type=positive_integer,
        default=0,
        metavar="N",
        help="processes (default: one for each core)",
    )
