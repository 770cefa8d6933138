"""
The sharding rules and local forms of ONNX operators, one file per family. Importing this
package registers them. Operators that are not here are replicated.
"""

from distir.sharding.rules import (
    addends,
    attention,
    contraction,
    convolution,
    elementwise,
    indexing,
    losses,
    normalization,
    parts,
    query,
    recurrent,
    reduction,
    reshape,
    train_attention,
    train_batch_normalization,
    train_convolution,
    train_dropout,
    train_indexing,
    train_loss_steps,
    train_losses,
    train_normalization,
    train_optimizers,
)

__all__ = [
    "addends",
    "attention",
    "contraction",
    "convolution",
    "elementwise",
    "indexing",
    "losses",
    "normalization",
    "parts",
    "query",
    "recurrent",
    "reduction",
    "reshape",
    "train_attention",
    "train_batch_normalization",
    "train_convolution",
    "train_dropout",
    "train_indexing",
    "train_loss_steps",
    "train_losses",
    "train_normalization",
    "train_optimizers",
]
