"""
The common parts of all inference programs: the two entries, the inputs of the entries,
and the cache that one entry passes to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.dialects.func import FuncOp

from distir.dialects.dist_attributes import FEEDS, LIMIT, NAME, PAGES, START, UPDATES
from distir.errors import DistIRError
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    result_attributes,
    set_argument_attributes,
    set_result_attributes,
)

PREFILL, DECODE = "prefill", "decode"
"""The names of the entries of an inference program."""

PAGE_TABLE = "pages"
"""The name of the input that has the pages of each sequence in a cache with pages."""

_FEEDS = {
    "input_ids": "tokens",
    "padding": "padding",
    "positions": "positions",
    PAGE_TABLE: "pages",
}
"""
The value that generation passes to each input of a step, by the name of the input.
"""


@dataclass(frozen=True)
class Paging:
    """
    The pages of a cache: `pools` pools of `pages` pages each, and `size` tokens in a
    page. The pools share the sequences evenly and in order.
    """

    pools: int
    pages: int
    size: int


@dataclass(frozen=True)
class ServingSizes:
    """
    The sizes of an inference program: `batch` sequences, a cache of `cache` tokens for
    each, and prompts of at most `prompt` tokens. In an encoder-decoder, the cache holds
    only generated tokens; keys and values of the prompts are kept apart. With `paging`,
    layers that attend to all tokens keep keys and values in pages.
    """

    batch: int
    cache: int
    prompt: int
    paging: Paging | None = None

    @property
    def columns(self) -> int:
        """The number of pages of a sequence with `cache` tokens; 0 without pages."""
        return 0 if self.paging is None else -(-self.cache // self.paging.size)

    @property
    def slots(self) -> int:
        """
        The number of tokens of a sequence that the cache has room for: `cache`, rounded
        up to whole pages.
        """
        return self.cache if self.paging is None else self.columns * self.paging.size

    def cache_shape(self, heads: int, width: int) -> tuple[int, ...]:
        """
        Returns the shape of the keys or values of a layer that attends to all tokens:
        [batch, heads, tokens, width], or [pools, pages, heads, page size, width].
        """
        if self.paging is None:
            return self.batch, heads, self.cache, width
        own = self.paging
        return own.pools, own.pages, heads, own.size, width


def serving_sizes(
    batch: int,
    cache: int | None,
    prompt: int | None,
    *,
    has_encoder: bool = False,
    page_size: int | None = None,
    pages: int | None = None,
    pools: int | None = None,
) -> ServingSizes:
    """
    Returns the sizes given by the options `--batch`, `--cache`, `--prompt`,
    `--page-size`, `--pages` and `--pools`, in sequences, tokens and pages. With
    `has_encoder`, a prompt may be longer than the cache, because the cache does not
    hold prompts. Raises DistIRError if `cache` is None, or if options contradict each
    other.
    """
    if cache is None:
        raise DistIRError(
            "--serve needs --cache N, the tokens of a sequence that the cache holds; add it"
        )
    if (prompt or 0) > cache and not has_encoder:
        raise DistIRError(
            f"--prompt {prompt} is longer than the {cache} tokens of the cache "
            f"(--cache); give a shorter one, or a larger cache"
        )
    sizes = ServingSizes(batch, cache, prompt or cache)
    if page_size is None:
        for name, value in {"pages": pages, "pools": pools}.items():
            if value is not None:
                raise DistIRError(f"--{name} is of use with --page-size only; add it")
        return sizes
    if has_encoder:
        raise DistIRError(
            "--page-size is for decoders alone: an encoder-decoder has no cache in "
            "pages; leave it out"
        )
    return replace(sizes, paging=_paging(batch, cache, page_size, pages, pools))


def _paging(
    batch: int, cache: int, size: int, pages: int | None, pools: int | None
) -> Paging:
    """
    Returns the pages of a cache of `cache` tokens for each of `batch` sequences. Raises
    DistIRError if the pools cannot share the sequences evenly, or if a pool has fewer
    pages than sequences or more pages than its sequences can use.
    """
    if pools is None:
        pools = batch if pages is None else 1
    if batch % pools:
        raise DistIRError(
            f"--batch {batch} sequences cannot be divided over --pools {pools}; give a "
            f"divisor of {batch}"
        )
    sequences = batch // pools
    most = sequences * -(-cache // size)
    if not sequences <= (pages or most) <= most:
        raise DistIRError(
            f"--pages {pages}: a pool is shared by {sequences} sequences of up to {cache} "
            f"tokens, and can have from {sequences} to {most} pages of {size} tokens"
        )
    return Paging(pools, pages or most, size)


def mark_inputs(
    function: FuncOp, sizes: ServingSizes, start: int | None = None
) -> None:
    """
    Sets attributes on each input of an entry: the kind of value that generation passes
    to the input, and the input's limit in tokens or the sizes of the pages. The limit
    is the size of the cache; for the padding of an encoder-decoder it is the length of
    the prompts. `start` is the first token of the decoder of an encoder-decoder, and
    None for any other model.
    """
    attributes = argument_attributes(function)
    for own, role, name in zip(
        attributes, argument_roles(function), argument_names(function), strict=True
    ):
        if role == "input":
            own[FEEDS] = FEEDS.attr(_FEEDS[name])
            of_prompts = start is not None and name == "padding"
            if name != PAGE_TABLE:
                own[LIMIT] = LIMIT.attr(sizes.prompt if of_prompts else sizes.cache)
            elif (paging := sizes.paging) is not None:
                numbers = (paging.pools, paging.pages, paging.size)
                own[PAGES] = DenseArrayBase.from_list(i64, numbers)
            if start is not None and name == "input_ids":
                own[START] = START.attr(start)
    set_argument_attributes(function, attributes)


def mark_new_caches(function: FuncOp, names: Sequence[str]) -> None:
    """
    Marks the results after the logits as the values of the arguments `names` in the
    next step, in order.
    """
    results = result_attributes(function)
    for result, name in zip(results[1:], names, strict=True):
        result[NAME] = result[UPDATES] = NAME.attr(name)
    set_result_attributes(function, results)
