"""The options for the floating-point types of a model."""

from __future__ import annotations

from dataclasses import dataclass

from distir.dialects.train_ops.float8 import RECIPES
from distir.options import option

DTYPES = ("f32", "f16", "bf16")
"""The floating-point types in which models can compute."""

LOW_PRECISION_DTYPES = ("f16", "bf16")
"""The 16-bit floating-point types in which models can compute."""


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    """
    The options for the floating-point types of parameters, of computation and of matrix
    products.
    """

    dtype: str | None = option(
        None,
        "the type of parameters and of computation (default: as in the model); "
        "the optimizer has f32 copies of parameters of 16 bits",
        choices=DTYPES,
    )
    autocast: str | None = option(
        None,
        "mixed precision as PyTorch's autocast: parameters stay as they are, matrix "
        "products are computed in 16 bits, norms, softmax and losses in f32",
        choices=LOW_PRECISION_DTYPES,
    )
    float8: str | None = option(
        None,
        "compute products with parameters in 8-bit floats, with a scale for each tensor, "
        "or for each row and column (row-gw-hp: but gradients of weights in the precision of "
        "the model), or for blocks of 32 (mxfp8); nvfp4: in 4-bit floats with scales for "
        "blocks of 16",
        choices=RECIPES,
    )
    float8_keep: tuple[str, ...] = option(
        (),
        "with --float8: products in this scope (with *) stay as they are; may be "
        "repeated; `none` for no product (default: those that make the results, the head)",
        metavar="SCOPE",
    )
