"""The options of `distribute`, which the pass, several commands and functions share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm, prod
from typing import Self

from distir.errors import DistIRError
from distir.hardware.options import ProfileOptions, TargetOptions
from distir.options import option, same_option
from distir.pipelining.options import PipelineOptions

NAME = "distribute"

AXES = ("r", "d", "e", "c", "t")
"""The axes of a program's mesh in their order, without the axis of micro-batches."""

ZERO_AXES = ("d", "e")
"""The axes over which ZeRO splits what a training step stores."""

EXPERT_AXES = ("e", "ec", "et", "ect")
"""The sets of axes over which experts may be dealt out, one letter for each axis."""


@dataclass(frozen=True)
class DistributionOptions(PipelineOptions):
    """
    Options for distributing a program over `r` x `d` x `e` x `c` x `t` x `p` devices of
    a cluster. These are the options of the pass `distribute`, whose documentation
    explains each option.
    """

    r: int = option(
        1,
        "groups of data-parallel devices that each hold all that --zero splits over "
        "their -d devices, such as nodes (default 1)",
    )
    d: int = option(
        1,
        "data-parallel degree (default 1)",
    )
    e: int = option(
        1,
        "expert-parallel degree: experts are dealt out, and tokens, which -e splits "
        "like -d, are sent to them (default 1)",
    )
    c: int = option(
        1,
        "context-parallel degree: sequences are split, through attention (default 1)",
    )
    t: int = option(
        1,
        "tensor-parallel degree (default 1)",
    )
    cluster: str = same_option(TargetOptions, "cluster")
    shard: tuple[str, ...] = option(
        (),
        "split dimension DIM of argument NAME over mesh axis AXIS (r, d, e, c or t), "
        "in runs of RUN elements; may be repeated. Refused where it cannot be done",
        metavar="NAME:DIM=AXIS[:RUN]",
    )
    whole: tuple[str, ...] = option(
        (),
        "keep argument NAME (with *) whole on every device; may be repeated",
        metavar="NAME",
    )
    pad: tuple[str, ...] = option(
        (),
        "pad heads of attention with heads of zeros where -t does not divide them, so "
        "that its devices share the attention, instead of keeping it whole on each",
        choices=("heads",),
    )
    zero: int = option(
        0,
        "ZeRO stage of a training step: split optimizer states (1), gradients (2) and "
        "parameters (3) over the data-parallel devices, -d and -e",
        choices=(0, 1, 2, 3),
    )
    no_sync: bool = option(
        False,
        "with --zero 2 and 3, add up the whole gradients of all -k micro-batches and "
        "reduce them once (PyTorch's no_sync), instead of scattering those of each: "
        "less communication, more memory",
    )
    checkpoint: str = option(
        "none",
        "what a training step computes again in its backward pass: nothing (none), "
        "what its layers' gradients need (full), all of the layers as PyTorch does "
        "(whole), what attention computes between its matrix products (selective), or "
        "all but the results of products and attention (products); or what it keeps "
        "in the host's memory meanwhile (offload). full:0.5 recomputes every second "
        "layer, full:6/6+2/6 all of the first 6 layers and 2 of the next 6, "
        "full:6/6+2/6:products the others by products; "
        "save:onnx.MatMul+train.attention keeps the results of these ops alone, "
        "recompute:onnx.Gelu those of all others",
        metavar="POLICY",
    )
    offload_states: bool = option(
        False,
        "keep the optimizer's states (moments, copies in f32) in the memory of the "
        "host; a device fetches them for the update of their parameters. For "
        "activations see --checkpoint offload",
    )
    sequence_parallel: bool = option(
        False,
        "split sequences over the tensor-parallel devices between the blocks",
    )
    keep_gathered: bool = option(
        False,
        "with --sequence-parallel, keep activations that a layer gathered over -t until "
        "its backward (as nanotron does), instead of gathering them again (as Megatron "
        "does): less communication, more memory",
    )
    sharded_outputs: bool = option(
        False,
        "in a training step whose caller computes the loss, leave outputs split over -t "
        "as they are computed, such as logits over words, instead of gathering them",
    )
    token_dispatch: str = option(
        "auto",
        "the way of tokens to the experts of the other -e devices: all tokens are "
        "gathered, or each goes to the devices of its experts alone, by all-to-all; "
        "by default the one that sends less",
        choices=("auto", "gather", "all-to-all"),
    )
    expert_axes: str = option(
        "e",
        "the axes over which experts are dealt out, one letter each: -e alone, so that -t "
        "splits the matrices of each expert (default), or also the -c and -t devices that "
        "share the attention of the same samples (Megatron's parallel folding)",
        choices=EXPERT_AXES,
    )
    context: str = option(
        "gather",
        "how keys and values come to the queries of the other -c devices: all are "
        "gathered (default), or blocks go around while devices compute, which takes "
        "less memory",
        choices=("gather", "ring"),
    )
    context_order: str = option(
        "contiguous",
        "which tokens of a sequence each of the -c devices has: neighbours, or, dealt "
        "out in turn, some from everywhere, so that a causal mask leaves equal work "
        "to all",
        choices=("contiguous", "cyclic"),
    )
    overlap: bool = option(
        False,
        "run communication while devices compute, where the simulator says that it "
        "is faster and fits into memory: reductions of gradients (dp), of activations (tp), "
        "sends between stages (pp), gathering of parameters (params); by default all of these",
        metavar="KIND,...",
    )
    overlapped: tuple[str, ...] = ()
    buckets: bool = option(
        True,
        "send neighbouring tensors, such as the gradients of a layer, in one message "
        "(default), or each tensor in a message of its own",
    )
    profile: tuple[str, ...] = same_option(ProfileOptions, "profile")

    @property
    def devices(self) -> int:
        """The number of devices that the program needs."""
        shapes = self.stage_shapes()
        if shapes:
            return sum(prod(sizes.values()) for sizes in shapes)
        return self.batch_parts * self.c * self.t * self.p

    @property
    def batch_parts(self) -> int:
        """The number of parts into which a batch is split over devices."""
        return self.r * self.d * self.e

    @property
    def axes_of_experts(self) -> tuple[str, ...]:
        """The axes with a size above 1 over which experts are distributed."""
        return tuple(axis for axis in self.expert_axes if getattr(self, axis) > 1)

    @property
    def expert_degree(self) -> int:
        """The number of devices over which experts are distributed."""
        return prod(getattr(self, axis) for axis in self.expert_axes)

    def on_one_mesh(self) -> Self:
        """
        Returns the options with the sizes of the single mesh on which layouts are
        chosen. If stages have their own meshes, the size of each axis is the least
        common multiple of its sizes in these meshes. Raises DistIRError if degrees are
        given besides the meshes of stages, or if such a mesh has an unknown axis.
        """
        shapes = self.stage_shapes()
        if not shapes:
            return self
        given = [axis for axis in AXES if getattr(self, axis) > 1]
        if given:
            raise DistIRError(
                f"{NAME}: stage_meshes says how large the axes of each stage are, and so does "
                f"{' and '.join(f'{axis}={getattr(self, axis)}' for axis in given)}; leave "
                f"out one of them"
            )
        unknown = {axis for sizes in shapes for axis in sizes} - {*AXES}
        if unknown:
            raise DistIRError(
                f"{NAME}: stage_meshes gives a stage an axis {min(unknown)!r}; the axes are "
                f"{', '.join(AXES)}"
            )
        sizes = {a: lcm(*(s.get(a, 1) for s in shapes)) for a in AXES}
        return replace(self, **sizes)
