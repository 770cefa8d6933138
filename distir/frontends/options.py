"""Options for models that are imported from PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from distir.dialects.train_ops.quantized_weights import EIGHT_BITS, WEIGHT_FORMATS
from distir.options import option


@dataclass(frozen=True, kw_only=True)
class ModuleOptions:
    """Facts about a PyTorch module that cannot be read from its code."""

    equal_features: bool = option(
        False,
        "each sample has as many places for features of images or sounds as the module "
        "gives it (masked_scatter): samples are then independent, as micro-batches need it; "
        "results of other samples are NaN",
    )


PAGING = ("page_size", "pages", "pools")
"""The options of `ServingOptions` for the pages of a cache."""


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """
    The sizes of a program for inference: the entries `prefill` and `decode`, with a
    cache between them.
    """

    serve: bool = option(
        False,
        "the steps of generation instead of one forward: prefill of prompts and decode of one "
        "token, two entries that share parameters and a cache",
    )
    cache: int | None = option(
        None,
        "with --serve, tokens of a sequence that the cache holds: prompt and new tokens",
        metavar="N",
    )
    prompt: int | None = option(
        None,
        "with --serve, length of the prompts that prefill takes; shorter ones are padded on "
        "the left (default: --cache)",
        metavar="N",
    )
    page_size: int | None = option(
        None,
        "with --serve, tokens of a page: keys and values are in pools of pages, which a table "
        "gives to sequences (default: one piece of --cache tokens for each sequence)",
        metavar="N",
    )
    pages: int | None = option(
        None,
        "with --page-size, pages of each pool (default: enough for --cache tokens of every "
        "sequence)",
        metavar="N",
    )
    pools: int | None = option(
        None,
        "with --page-size, pools over which the sequences are divided; data parallelism splits "
        "them (default: one for each sequence, with --pages one for all)",
        metavar="N",
    )
    weights_dtype: str | None = option(
        None,
        "with --serve, the type of the matrices of layers: int8 or fp8 with a scale for each "
        "row, or int4 with a scale and a zero point for each group of a row; products compute "
        "in the type of the model (default: that type)",
        choices=WEIGHT_FORMATS,
    )
    weights_group: int = option(
        128,
        "with --weights-dtype int4, weights of a row in a group (default 128)",
        metavar="N",
    )
    cache_dtype: str | None = option(
        None,
        "with --serve, the type of cached keys and values: int8 or fp8 with a scale for each "
        "token and head; attention computes in the type of the model (default: that type)",
        choices=tuple(EIGHT_BITS),
    )
