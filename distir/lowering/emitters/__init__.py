"""The emitters of this package, one family of ops per file; registered on import."""

from distir.lowering.emitters import (  # noqa: F401
    communication,
    convolution,
    elementwise,
    linear_algebra,
    normalization,
    reduction,
    shape,
)
