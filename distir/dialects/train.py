"""
The `train` dialect: what a training step needs and ONNX lacks, at the granularity of
real kernels: gradients of fused ops and optimizer updates.

Every op is defined in `distir/dialects/train_ops/`, one file per family; its docstring
says shapes and formulas.
"""

from xdsl.ir import Dialect

from distir.dialects.train_ops import (
    activation,
    attention,
    batch_normalization,
    convolution,
    dropout,
    indexing,
    loss_steps,
    losses,
    normalization,
    optimizers,
    softmax,
)

Train = Dialect(
    "train",
    [
        *activation.OPS,
        *attention.OPS,
        *batch_normalization.OPS,
        *convolution.OPS,
        *dropout.OPS,
        *indexing.OPS,
        *loss_steps.OPS,
        *losses.OPS,
        *normalization.OPS,
        *optimizers.OPS,
        *softmax.OPS,
    ],
    [],
)
