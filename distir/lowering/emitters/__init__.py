"""The emitters of this package, one family of ops per file; registered on import."""

from distir.lowering.emitters import (
    attention,
    communication,
    convolution,
    elementwise,
    image,
    linear_algebra,
    normalization,
    recurrent,
    reduction,
    shape,
    signal,
    training,
)

__all__ = [
    "attention",
    "communication",
    "convolution",
    "elementwise",
    "image",
    "linear_algebra",
    "normalization",
    "recurrent",
    "reduction",
    "shape",
    "signal",
    "training",
]
