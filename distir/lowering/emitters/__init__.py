"""The emitters of this package, one family of ops per file; registered on import."""

from distir.lowering.emitters import (  # noqa: F401
    communication,
    elementwise,
    linear_algebra,
    reduction,
    shape,
)
