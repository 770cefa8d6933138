"""
A lower bound of the memory of a replica, in closed form, before any step is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from distir.frontends.models.serving_step import DecoderSizes
from distir.planning.serving.plans import ReplicaShape

_NARROW = "fp8"
"""The format of weights and caches that a message proposes."""


@dataclass(frozen=True)
class MemoryBound:
    """
    The least memory of each device of a replica, in bytes: its part of the parameters,
    and its part of the caches of the longest request, `longest` tokens. `device` is the
    memory of a device. The memory that steps need is not included.
    """

    parameters: float
    caches: float
    longest: int
    device: int

    @property
    def missing(self) -> float:
        """The bytes that a device lacks; 0 or less if the replica may fit."""
        return self.parameters + self.caches - self.device

    @property
    def reason(self) -> str:
        """Returns a text that says which data do not fit into a device."""
        caches = ""
        if self.parameters < self.device:
            caches = (
                f" and the caches of {self.longest} tokens {self.caches / 1e9:.4g} GB"
            )
        return (
            f"its parameters take {self.parameters / 1e9:.4g} GB{caches} of a device, "
            f"which has {self.device / 1e9:.4g} GB"
        )


def memory_bound(
    sizes: DecoderSizes, shape: ReplicaShape, longest: int, device: int
) -> MemoryBound:
    """
    Returns the least memory of a device with `device` bytes in a replica of a model
    with `sizes`, where the longest request has `longest` tokens. All tensors are split
    as far as possible: experts over all devices, other parameters over `t` x `p`
    devices. Latents (compressed keys and values) are not split: every device has those
    of all its layers.
    """
    group = shape.t * shape.p
    tables = (1 if sizes.tied else 2) * sizes.vocab * sizes.d_model
    others = sizes.parameters - sizes.experts_in_all - tables
    whole = sizes.parameter_bytes(others) + tables * sizes.width
    experts = sizes.parameter_bytes(sizes.experts_in_all)
    parameters = whole / group + experts / (group * shape.e)
    heads = 1 if sizes.latent is not None else shape.t
    share = ceil(sizes.layers / shape.p) / sizes.layers
    room = longest
    if sizes.window_layers:
        kept = sizes.window_layers / sizes.layers
        room = longest - kept * max(longest - sizes.window, 0)
    caches = sizes.cached_bytes * share * room / heads
    return MemoryBound(parameters, caches, longest, device)


def advice(
    sizes: DecoderSizes, shapes: Iterable[ReplicaShape], longest: int, device: int
) -> str:
    """
    Returns a text on the shape of `shapes` that lacks the least memory: the missing
    memory, and changes that would help. The text is empty if a shape may fit, or if
    `shapes` is empty.
    """
    different = tuple(dict.fromkeys(shapes))

    def least(own: DecoderSizes) -> tuple[float, ReplicaShape, MemoryBound] | None:
        bounds = [(memory_bound(own, s, longest, device), s) for s in different]
        found = [(b.missing * s.devices, s, b) for b, s in bounds]
        return min(found, default=None)

    best = least(sizes)
    if best is None or best[2].missing < 0:
        return ""
    missing, shape, bound = best
    narrow = replace(
        sizes, formats=replace(sizes.formats, weights=_NARROW, cache=_NARROW)
    )
    fewer = least(narrow)
    assert fewer is not None
    needed = ceil((bound.parameters + bound.caches) * shape.devices / device)
    # Replicas have powers of two.
    remedy = f"give at least {1 << (needed - 1).bit_length()} --devices"
    if narrow != sizes and fewer[2].missing < 0:
        remedy += f", or 8 bits (--weights-dtype {_NARROW} --cache-dtype {_NARROW})"
    return (
        f"{shape} on {shape.devices} devices comes closest: {bound.reason}, so that "
        f"{missing / 1e9:.4g} GB are missing in all; {remedy}"
    )
