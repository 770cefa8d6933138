"""
What the inference programs of all frontends have in common: their entries, the inputs
of the entries, and the cache that one entry passes to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp

from distir.dialects.dist_attributes import FEEDS, LIMIT, NAME, START, UPDATES
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

_FEEDS = {"input_ids": "tokens", "padding": "padding", "positions": "positions"}
"""
The value that generation passes to each input of a step, by the name of the input.
"""


@dataclass(frozen=True)
class ServingSizes:
    """
    The sizes of an inference program: `batch` sequences, a cache of `cache` tokens for
    each, and prompts of at most `prompt` tokens. In an encoder-decoder the cache is
    that of generated tokens; keys and values of the prompts are kept besides.
    """

    batch: int
    cache: int
    prompt: int


def serving_sizes(
    batch: int, cache: int | None, prompt: int | None, *, has_encoder: bool = False
) -> ServingSizes:
    """
    Returns the sizes that the options `--batch`, `--cache` and `--prompt` ask for. The
    prompts of a model that `has_encoder` are not in its cache. Raises DistIRError if
    there is no size of the cache, or if prompts do not fit into the cache.
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
    return ServingSizes(batch, cache, prompt or cache)


def mark_inputs(
    function: FuncOp, sizes: ServingSizes, start: int | None = None
) -> None:
    """
    Sets attributes on each input of an entry: the value that generation passes to it,
    and the number of tokens in the cache as its limit. `start` is the token with which
    the decoder of an encoder-decoder begins; None stands for a decoder alone. The
    padding of an encoder-decoder is limited by its prompts, which are not in the cache.
    """
    attributes = argument_attributes(function)
    for own, role, name in zip(
        attributes, argument_roles(function), argument_names(function), strict=True
    ):
        if role == "input":
            own[FEEDS] = FEEDS.attr(_FEEDS[name])
            of_prompts = start is not None and name == "padding"
            own[LIMIT] = LIMIT.attr(sizes.prompt if of_prompts else sizes.cache)
            if start is not None and name == "input_ids":
                own[START] = START.attr(start)
    set_argument_attributes(function, attributes)


def mark_new_caches(function: FuncOp, names: Sequence[str]) -> None:
    """
    Marks the results after the logits as those that replace the arguments `names`.
    """
    results = result_attributes(function)
    for result, name in zip(results[1:], names, strict=True):
        result[NAME] = result[UPDATES] = NAME.attr(name)
    set_result_attributes(function, results)
