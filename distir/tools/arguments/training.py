"""The arguments that turn a forward program into a training step."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distir.gradients.choices import (
    DROPOUT_MASKS,
    GRADIENT_DTYPES,
    IGNORED_LABEL,
    LOSS_SCALINGS,
    LOSSES,
    OPTIMIZERS,
)
from distir.tools.arguments.types import (
    non_negative_integer,
    non_negative_number,
    positive_integer,
)

if TYPE_CHECKING:
    from distir.passes.differentiate import DifferentiatePass

_NUMBERS = {
    "learning-rate": "step size (default 0.001)",
    "momentum": "of sgd (default 0)",
    "beta1": "of adam and adamw (default 0.9)",
    "beta2": "of adam and adamw (default 0.999)",
    "epsilon": "of adam and adamw (default 1e-8)",
    "weight-decay": "as in PyTorch (default 0.01 for adamw, 0 for the others)",
    "clip": "the largest global norm of the gradients (default 0: any)",
}


def add_float8_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares `--float8` and the option that goes with it."""
    parser.add_argument(
        "--float8",
        choices=("tensor", "row", "row-gw-hp"),
        help="compute products with parameters in 8-bit floats, with a scale for each tensor, "
        "or for each row and column; row-gw-hp: but gradients of weights in the precision of "
        "the model",
    )
    parser.add_argument(
        "--float8-keep",
        action="append",
        default=[],
        metavar="SCOPE",
        help="with --float8: products in this scope (with *) stay as they are; may be "
        "repeated; `none` for no product (default: those that make the results, the head)",
    )


def float8_passes(arguments: argparse.Namespace) -> list[Any]:
    """
    Returns the passes that put products of a forward program into 8-bit floats, as the
    arguments ask. Raises DistIRError.
    """
    from distir.errors import DistIRError
    from distir.passes.float8 import Float8Pass

    if arguments.float8 is None:
        if arguments.float8_keep:
            raise DistIRError("--float8-keep is of use with --float8 only; add it")
        return []
    return [Float8Pass(arguments.float8, tuple(arguments.float8_keep))]


def add_training_arguments(parser: argparse.ArgumentParser) -> Any:
    """Declares `--training` and the options that go with it; returns their group."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--training",
        action="store_true",
        help="make a training step: a loss, its gradients and the optimizer's update",
    )
    group.add_argument(
        "--loss",
        choices=LOSSES,
        help="cross_entropy of logits and integer labels, mse (mean squared error), or "
        "none where the program's result is the loss",
    )
    group.add_argument(
        "--loss-output",
        dest="output_index",
        type=non_negative_integer,
        metavar="N",
        help="which result of the program the loss is taken of (default 0)",
    )
    group.add_argument(
        "--ignore-index",
        type=int,
        metavar="CLASS",
        help="the label of positions that do not count in a cross_entropy, such as padding "
        "(default -100, as in PyTorch; of a model that is built: every label is a class)",
    )
    group.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help="none returns the gradients (default adamw)",
    )
    group.add_argument(
        "--dropout-masks",
        choices=DROPOUT_MASKS,
        help="drawn again by the backward (default), or stored by the forward",
    )
    group.add_argument(
        "--gradient-dtype",
        choices=GRADIENT_DTYPES,
        help="that of the parameter (default), or f32 for 16-bit parameters too",
    )
    group.add_argument(
        "--no-master-weights",
        dest="master_weights",
        action="store_false",
        default=None,
        help="update 16-bit parameters themselves instead of an f32 copy of each",
    )
    for name in ("devices", "micro-batches"):
        group.add_argument(
            f"--batch-norm-{name}",
            type=positive_integer,
            metavar="N",
            help=f"batch normalisation has statistics of the samples of one of N {name}, as "
            "in PyTorch (default 1: of all of them)",
        )
    group.add_argument(
        "--loss-scaling",
        choices=LOSS_SCALINGS,
        help="whether gradients are those of the loss times a power of two, which is "
        "halved where they overflow (default dynamic for --dtype f16 and --autocast f16)",
    )
    for name, help_ in _NUMBERS.items():
        group.add_argument(
            f"--{name}", type=non_negative_number, metavar="X", help=help_
        )
    return group


def differentiate_pass(
    arguments: argparse.Namespace, loss: str | None = None
) -> DifferentiatePass | None:
    """
    Returns the pass that these arguments ask for; None without `--training`. `loss` is the
    default loss. Raises DistIRError for arguments that do not go together.
    """
    from distir.errors import DistIRError

    names = [
        "loss",
        "ignore_index",
        "optimizer",
        "dropout_masks",
        "dropout_seed",
        "batch_norm_devices",
        "batch_norm_micro_batches",
        "gradient_dtype",
        "loss_scaling",
        "master_weights",
        *(name.replace("-", "_") for name in _NUMBERS),
    ]
    given = {n: v for n in names if (v := getattr(arguments, n, None)) is not None}
    if arguments.training and getattr(arguments, "no_fused_attention", False):
        given["fused_attention"] = False
    if arguments.output_index is not None:
        given["output"] = arguments.output_index
    if not arguments.training:
        if given:
            option = next(iter(given)).replace("_", "-")
            option = {
                "output": "loss-output",
                "master-weights": "no-master-weights",
            }.get(option, option)
            raise DistIRError(f"--{option} is of use with --training only; add it")
        return None
    if "f16" in (
        getattr(arguments, "dtype", None),
        getattr(arguments, "autocast", None),
    ):
        given.setdefault("loss_scaling", "dynamic")
    given.setdefault("loss", loss)
    if given["loss"] is None:
        raise DistIRError(
            f"--training needs a loss; give --loss with one of {', '.join(LOSSES)}"
        )
    if loss is None and given["loss"] == "cross_entropy":  # the model is the user's
        given.setdefault("ignore_index", IGNORED_LABEL)
    from distir.passes.differentiate import DifferentiatePass

    return DifferentiatePass(**given)
