"""The emitters of this package, one family of ops per file; registered on import."""

from distir.lowering.emitters import (  # noqa: F401
    attention,
    communication,
    convolution,
    elementwise,
    linear_algebra,
    normalization,
    recurrent,
    reduction,
    shape,
    train_attention,
    train_batch_normalization,
    train_convolution,
    train_indexing,
    train_losses,
    train_normalization,
    train_optimizers,
)
