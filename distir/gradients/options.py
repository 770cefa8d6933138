"""
The options of training steps, for the pass `differentiate` and several commands. The
module imports little, so that commands can list their options quickly.
"""

from __future__ import annotations

from dataclasses import dataclass

from distir.options import option

OUTSIDE = "outside"
"""The loss that the caller of a program computes from its results."""

LOSSES = ("cross_entropy", "mse", "none", OUTSIDE)
"""
The losses that `differentiate` can append. With "none", the program's result is the
loss. With "outside", the caller computes the loss from the results, and gives their
gradients to the program.
"""

OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "lamb", "lion", "muon", "none")
"""The optimizers. With "none", a step returns the gradients."""

STATE_DTYPES = ("parameter", "bf16", "int8")
"""
The element types of the optimizer's states: that in which parameters are updated, bf16,
or codes of 8 bits with a scale for each block.
"""

MUON_SCALES = ("match_rms_adamw", "original")
"""Muon's factors of the learning rate, with the names that PyTorch gives them."""

ORTHOGONALIZE_DTYPES = ("bf16", "parameter")
"""The element types of the products in Muon's orthogonalisation."""

DROPOUT_MASKS = ("drawn", "stored")
"""
The sources of dropout masks in the backward: "drawn" again by the backward, or "stored"
by the forward.
"""

GRADIENT_DTYPES = ("parameter", "f32")
"""The element types of gradients: that of the parameter, or f32."""

LOSS_SCALINGS = ("none", "dynamic")
"""The kinds of loss scaling, which keeps f16 gradients from underflowing."""

IGNORED_LABEL = -100
"""The default label of positions that do not count in cross-entropy, as in PyTorch."""


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """
    The optimizer and its settings, with the same meanings as in PyTorch. With the
    optimizer "none", the step returns the gradients. With `master_weights`, each f16 or
    bf16 parameter has an f32 copy that the optimizer updates. Otherwise the optimizer
    updates the parameters themselves, and its states have the type of the parameters.
    """

    optimizer: str = option(
        "adamw",
        "none returns the gradients (default adamw)",
        choices=OPTIMIZERS,
    )
    learning_rate: float = option(1e-3, "step size (default 0.001)", metavar="X")
    momentum: float | None = option(
        None, "of sgd (default 0) and muon (default 0.95)", metavar="X"
    )
    beta1: float = option(
        0.9, "of adam, adamw, lamb and lion (default 0.9)", metavar="X"
    )
    beta2: float | None = option(
        None,
        "of adam, adamw and lamb (default 0.999) and lion (default 0.99)",
        metavar="X",
    )
    epsilon: float | None = option(
        None,
        "of adam and adamw (default 1e-8), lamb (1e-6), muon (1e-7) and adafactor (that "
        "of the parameter's type)",
        metavar="X",
    )
    weight_decay: float | None = option(
        None,
        "as in PyTorch (default 0.01 for adamw and lamb, 0.1 for muon, 0 for the others)",
        metavar="X",
    )
    clip: float = option(
        0.0,
        "the largest global norm of the gradients (default 0: any)",
        metavar="X",
    )
    relative_step: bool = option(
        True,
        "adafactor: steps of the learning rate, instead of steps in proportion to each "
        "parameter that become shorter with time",
        flag="no-relative-step",
    )
    muon_scale: str = option(
        "match_rms_adamw",
        "steps of muon that are as long as those of adamw (default), or the original ones",
        choices=MUON_SCALES,
    )
    orthogonalize_dtype: str = option(
        "bf16",
        "the type of muon's products (default bf16)",
        choices=ORTHOGONALIZE_DTYPES,
    )
    by_adamw: tuple[str, ...] = option(
        (),
        "parameters that adamw updates instead of muon, such as that of the last layer: "
        "names or patterns with *",
        metavar="NAME",
    )
    state_dtype: str = option(
        "parameter",
        "how the optimizer's states are stored: in the type that parameters are updated "
        "in (default), in bf16, or in 8 bits with a scale for each block of 64",
        choices=STATE_DTYPES,
    )
    master_weights: bool = option(
        True,
        "update 16-bit parameters themselves instead of an f32 copy of each",
        flag="no-master-weights",
    )


@dataclass(frozen=True)
class StepOptions(OptimizerOptions):
    """The options for turning a forward program into a training step."""

    loss: str = option(
        "cross_entropy",
        "cross_entropy of logits and integer labels, mse (mean squared error), "
        "none where the program's result is the loss, or outside: the program takes the "
        "gradients of its results as further arguments",
        choices=LOSSES,
    )
    output: int = option(
        0,
        "which result of the program the loss is taken of (default 0)",
        flag="loss-output",
        kind="non_negative_integer",
        metavar="N",
    )
    ignore_index: int | None = option(
        None,
        "the label of positions that do not count in a cross_entropy, such as padding "
        "(default -100, as in PyTorch; of a model that is built: every label is a class)",
        kind="integer",
        metavar="CLASS",
    )
    inputs: tuple[str, ...] = ()
    dropout_masks: str = option(
        "drawn",
        "drawn again by the backward (default), or stored by the forward",
        choices=DROPOUT_MASKS,
    )
    gradient_dtype: str = option(
        "parameter",
        "that of the parameter (default), or f32 for 16-bit parameters too",
        choices=GRADIENT_DTYPES,
    )
    loss_scaling: str = option(
        "none",
        "whether gradients are those of the loss times a power of two, which is "
        "halved where they overflow (default dynamic for --dtype f16 and --autocast f16)",
        choices=LOSS_SCALINGS,
    )
    dropout_seed: int = option(
        0,
        "seed of the random numbers of dropout, which a model exported in training "
        "mode has (default 0)",
        kind="non_negative_integer",
        metavar="N",
    )
    fused_attention: bool = option(
        True,
        "keep attention as the file has it, instead of one op where it is written out",
        flag="no-fused-attention",
    )
    batch_norm_devices: int = option(
        1,
        "batch normalisation has statistics of the samples of one of N devices, as in "
        "PyTorch (default 1: of all of them)",
        metavar="N",
    )
    batch_norm_micro_batches: int = option(
        1,
        "batch normalisation has statistics of the samples of one of N micro-batches, as in "
        "PyTorch (default 1: of all of them)",
        metavar="N",
    )
