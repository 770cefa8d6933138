"""The arguments that turn a forward program into a training step."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distir.gradients.options import IGNORED_LABEL, LOSSES, StepOptions
from distir.options import options_of
from distir.tools.arguments.declared import add_option, add_options, flag_of
from distir.transforms.precision.options import PrecisionOptions

if TYPE_CHECKING:
    from distir.passes.differentiate import DifferentiatePass

_LOSS = ("loss", "output", "ignore_index", "optimizer")

_GRADIENTS = (
    *("dropout_masks", "gradient_dtype", "master_weights", "state_dtype"),
    *("batch_norm_devices", "batch_norm_micro_batches", "loss_scaling"),
)

_NUMBERS = (
    *("learning_rate", "momentum", "beta1", "beta2", "epsilon", "weight_decay"),
    *("clip", "relative_step", "muon_scale", "orthogonalize_dtype", "by_adamw"),
)

_OUTPUT = "output_index"
"""
The name of the option `--loss-output` in the parsed arguments. The name `output` stands
for `-o` there.
"""


def add_float8_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--float8` and `--float8-keep` to `parser`."""
    add_options(parser, PrecisionOptions, ("float8", "float8_keep"))


def float8_passes(arguments: argparse.Namespace) -> list[Any]:
    """
    Returns the passes that compute products in 8-bit floats; an empty list without
    `--float8`. Raises DistIRError for arguments that cannot be combined.
    """
    from distir.errors import DistIRError
    from distir.passes.float8 import Float8Pass

    if arguments.float8 is None:
        if arguments.float8_keep:
            raise DistIRError("--float8-keep is of use with --float8 only; add it")
        return []
    return [Float8Pass(arguments.float8, tuple(arguments.float8_keep))]


def add_training_arguments(parser: argparse.ArgumentParser) -> Any:
    """
    Adds `--training` and the options that belong to it to `parser`, and returns the
    argument group of these options.
    """
    group = parser.add_argument_group("training")
    group.add_argument(
        "--training",
        action="store_true",
        help="make a training step: a loss, its gradients and the optimizer's update",
    )
    declared = {option.name: option for option in options_of(StepOptions)}
    for name in (*_LOSS, *_GRADIENTS, *_NUMBERS):
        settings = {"dest": _OUTPUT} if name == "output" else {}
        add_option(group, declared[name], optional=True, **settings)
    return group


def differentiate_pass(
    arguments: argparse.Namespace, loss: str | None = None
) -> DifferentiatePass | None:
    """
    Returns the pass that makes a training step, or None without `--training`. `loss` is
    the default loss. Raises DistIRError for arguments that cannot be combined.
    """
    from distir.errors import DistIRError

    given: dict[str, Any] = {}
    for option in options_of(StepOptions):
        name = _OUTPUT if option.name == "output" else option.name
        value = getattr(arguments, name, None)
        if option.name == "fused_attention":
            written_out = getattr(arguments, "no_fused_attention", value is False)
            value = False if arguments.training and written_out else None
        if value is None:
            continue
        if not arguments.training:
            raise DistIRError(
                f"{flag_of(option)} is of use with --training only; add it"
            )
        given[option.name] = value
    if not arguments.training:
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
