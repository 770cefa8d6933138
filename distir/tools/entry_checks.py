"""
Checks programs with several entries: compares each entry of two programs on the same
arguments, and decode with prefill within one program.

Prompts have different lengths. Prefill runs on each prompt without its last token, and
then decode on this token. Prefill also runs on the whole prompt. Both ways must give
the same logits, whatever numbers the cache holds before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp

from distir.dialects.dist_attributes import FEEDS, LIMIT, PAGES, START
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.serving import DECODE, PREFILL
from distir.program import Program, entry_points
from distir.program.entries import one_entry
from distir.program.view import Argument
from distir.tools.comparison import (
    OutputDifference,
    check_same_outputs,
    compare,
    default_tolerance,
    largest_difference,
)
from distir.tools.files import Arrays

Values = dict[str, npt.NDArray[Any]]


def compared(
    programs: tuple[ModuleOp, ModuleOp],
    paths: tuple[str | Path, str | Path],
    weights: Arrays,
    given: Arrays,
    seed: int,
    tolerance: float | None,
) -> list[OutputDifference]:
    """
    Compares two programs with one or several entries on the same arguments. `weights`
    and `given` have arguments by name; all other arguments are random, drawn from
    `seed`. `paths` name the programs in messages, and `tolerance` is the largest
    relative difference allowed. Raises DistIRError if the programs have different
    entries or results.
    """
    from distir.tools.arguments.program import whole_arguments

    if any(entry_points(module) for module in programs):
        return compare_entries(programs, paths, weights, given, seed, tolerance)
    check_same_outputs(paths[0], programs[0], paths[1], programs[1])
    values = whole_arguments(programs[0], paths[0], weights, given, seed)
    return compare(programs, paths, values, tolerance)


def compare_entries(
    programs: tuple[ModuleOp, ModuleOp],
    paths: tuple[str | Path, str | Path],
    weights: Arrays,
    given: Arrays,
    seed: int,
    tolerance: float | None,
) -> list[OutputDifference]:
    """
    Compares two programs with the same entries, and decode with prefill in the second
    program. `weights` and `given` have arguments by name; all other arguments are
    random, drawn from `seed`. `paths` name the programs in messages, and `tolerance` is
    the largest relative difference allowed. Raises DistIRError if the programs have
    different entries or results.
    """
    names = [list(entry_points(module)) for module in programs]
    if names[0] != names[1]:
        listing = [" and ".join(each) or "one entry" for each in names]
        raise DistIRError(
            f"{paths[0]} has {listing[0]}, but {paths[1]} has {listing[1]}; they are not "
            f"the same program"
        )
    entries = [
        {name: one_entry(module, name) for name in names[0]} for module in programs
    ]
    found: list[OutputDifference] = []
    for name in names[0]:
        pair = entries[0][name], entries[1][name]
        own = f"{paths[0]} ({name})", f"{paths[1]} ({name})"
        check_same_outputs(own[0], pair[0], own[1], pair[1])
        values = _values(pair[0], own[0], weights, given, seed)
        found += [
            replace(each, name=f"{name}: {each.name}")
            for each in compare(pair, own, values, tolerance)
        ]
    if {PREFILL, DECODE} <= entries[1].keys():
        found.append(
            _decode_after_prefill(entries[1], paths[1], weights, given, seed, tolerance)
        )
    return found


def _values(
    module: ModuleOp, path: str | Path, weights: Arrays, given: Arrays, seed: int
) -> Values:
    """
    Returns the arguments of an entry by name. Paddings, positions and pages that `given`
    does not contain are random values within the range that generation uses. The pages
    are the same for all entries.
    """
    from distir.tools.arguments.program import whole_arguments

    own = _own(module, weights), _own(module, given)
    values = whole_arguments(module, path, *own, seed)
    random = np.random.default_rng(seed)
    fed = _fed(module)
    for kind, name in fed.items():
        if kind == "tokens" or name in given:
            continue
        if kind == "pages":
            values[name] = _random_pages(module, name, seed)
            continue
        limit = _limit(module, name)
        if kind == "padding" and _start(module) is None:
            limit = values[fed["tokens"]].shape[1]
        values[name] = random.integers(0, limit, values[name].shape)
    return values


def _paging(module: ModuleOp) -> tuple[Argument, tuple[int, int, int]] | None:
    """
    Returns the argument of an entry that is the table of pages, with the numbers of
    pools, of pages of each pool and of tokens of a page. Returns None if the cache has
    no pages.
    """
    for argument in Program(module).arguments:
        numbers = argument.attributes.get(PAGES)
        if isinstance(numbers, DenseArrayBase):
            pools, pages, size = (int(n) for n in numbers.get_values())
            return argument, (pools, pages, size)
    return None


def _random_pages(module: ModuleOp, name: str, seed: int) -> npt.NDArray[Any]:
    """
    Returns a table of pages in which every page of a pool occurs once, in random order,
    and -1 fills the remaining places. Sequences have equally many pages, or one more.
    """
    found = _paging(module)
    assert found is not None and found[0].name == name
    argument, (pools, pages, _) = found
    random = np.random.default_rng(seed)
    batch, columns = shape_of(argument.value)
    shared = batch // pools
    table = np.full((pools, columns * shared), -1)
    for own in table:
        numbers = random.permutation(pages)[: len(own)]
        own[: len(numbers)] = numbers
    # A pool gives a page to each of its sequences, then a second one, and so on.
    tables = table.reshape(pools, columns, shared).swapaxes(1, 2)
    return tables.reshape(batch, columns)


def _full_pages(module: ModuleOp, length: int) -> int:
    """
    Returns the number of tokens, at most `length`, for which every sequence has pages.
    """
    found = _paging(module)
    if found is None:
        return length
    argument, (pools, pages, size) = found
    return min(length, pages // (shape_of(argument.value)[0] // pools) * size)


def _own(module: ModuleOp, values: Arrays) -> Arrays:
    """
    Returns the entries of `values` that are arguments of a program, or parts of
    arguments.
    """
    from distir.program.repacking import repacked_arguments

    program = Program(module)
    names = {argument.name for argument in program.arguments}
    for packed in repacked_arguments(program.entry).values():
        names.update(packed.names)
    return {name: values[name] for name in values if name in names}


def _fed(module: ModuleOp) -> dict[str, str]:
    """
    Returns the names of an entry's inputs, by the kind of value that generation passes
    to them.
    """
    return {
        kind: argument.name
        for argument in Program(module).arguments
        if (kind := FEEDS.of(argument.attributes)) is not None
    }


def _limit(module: ModuleOp, name: str) -> int:
    """
    Returns the largest number of tokens that the input `name` of an entry counts, or 1
    if it has no limit.
    """
    own = next(a for a in Program(module).arguments if a.name == name)
    return LIMIT.of(own.attributes) or 1


def _start(module: ModuleOp) -> int | None:
    """
    Returns the token with which the decoder of an encoder-decoder begins, or None if
    the model is a decoder alone.
    """
    found = [START.of(argument.attributes) for argument in Program(module).arguments]
    return next((token for token in found if token is not None), None)


def _decode_after_prefill(
    entries: Mapping[str, ModuleOp],
    path: str | Path,
    weights: Arrays,
    given: Arrays,
    seed: int,
    tolerance: float | None,
) -> OutputDifference:
    """
    Returns the difference between the logits of decode and the logits of prefill.
    Raises DistIRError if prefill takes prompts of one token only.
    """
    prefill, decode = entries[PREFILL], entries[DECODE]
    values = _values(prefill, path, weights, given, seed)
    arguments = _values(decode, path, weights, given, seed)
    fed = _fed(prefill), _fed(decode)
    start = _start(decode)
    if start is None:
        batch, length = values[fed[0]["tokens"]].shape
        if (length := _full_pages(decode, length)) < 2:
            raise DistIRError(
                f"{path}: prefill takes prompts of one token, or each sequence has one "
                f"page of one token, so that decode cannot be compared with it; import the "
                f"model with a larger --prompt, or more --pages"
            )
        counts = np.random.default_rng(seed).integers(2, length + 1, batch)
        expected, actual = _last_of_prompts(entries, (values, arguments), fed, counts)
    else:
        expected, actual = _start_of_decoder(entries, (values, arguments), fed, start)
    absolute, relative = largest_difference(expected, actual.reshape(expected.shape))
    allowed = default_tolerance(expected.dtype) if tolerance is None else tolerance
    return OutputDifference("decode after prefill", absolute, relative, allowed)


_Fed = tuple[Mapping[str, str], Mapping[str, str]]
"""The names of the inputs of prefill and of decode, by the kind of value."""

_Logits = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def _last_of_prompts(
    entries: Mapping[str, ModuleOp],
    values: tuple[Values, Values],
    fed: _Fed,
    counts: npt.NDArray[Any],
) -> _Logits:
    """
    Returns the logits of the last tokens of prompts, computed in two ways: by prefill,
    and by decode after a prefill of the prompts without their last tokens. `counts`
    holds the numbers of tokens of the prompts.
    """
    (own, arguments), (inputs, inputs_of_decode) = values, fed
    prompts = own[inputs["tokens"]]
    length = prompts.shape[1]
    before, whole = np.zeros_like(prompts), np.zeros_like(prompts)
    for row, count in enumerate(counts):
        prompt = prompts[row, :count]
        before[row, length - count + 1 :] = prompt[:-1]
        whole[row, length - count :] = prompt
    last = prompts[np.arange(len(prompts)), counts - 1][:, None]
    tokens, padding = inputs["tokens"], inputs["padding"]
    prefill, decode = entries[PREFILL], entries[DECODE]
    expected, _ = _run(prefill, own | {tokens: whole, padding: length - counts})
    _, caches = _run(prefill, own | {tokens: before, padding: length - counts + 1})
    given = {
        inputs_of_decode["tokens"]: last,
        inputs_of_decode["positions"]: counts - 1,
    }
    actual, _ = _run(decode, arguments | caches | given)
    return expected, actual


def _start_of_decoder(
    entries: Mapping[str, ModuleOp],
    values: tuple[Values, Values],
    fed: _Fed,
    start: int,
) -> _Logits:
    """
    Returns the logits of the start token of an encoder-decoder, on prompts of different
    lengths, computed in two ways: by prefill, and by decode. Decode reads the keys and
    values of the prompts from the cache of prefill, and replaces the start token's keys
    and values.
    """
    (own, arguments), (inputs, inputs_of_decode) = values, fed
    expected, caches = _run(entries[PREFILL], own)
    batch = len(own[inputs["tokens"]])
    # Caches that decode replaces keep the random numbers from before.
    program = Program(entries[DECODE])
    written = {program.arguments[a].name for a in program.updates.values()}
    given = {name: cache for name, cache in caches.items() if name not in written}
    given[inputs_of_decode["tokens"]] = np.full((batch, 1), start)
    given[inputs_of_decode["positions"]] = np.zeros(batch, np.int64)
    given[inputs_of_decode["padding"]] = own[inputs["padding"]]
    actual, _ = _run(entries[DECODE], arguments | given)
    return expected, actual


def _run(module: ModuleOp, values: Values) -> tuple[npt.NDArray[Any], Values]:
    """Runs an entry. Returns its logits, and the new content of the cache by name."""
    from distir.interpreters.reference import run_program
    from distir.tools.arguments.program import arguments_by_name

    program = Program(module)
    names = [argument.name for argument in program.arguments]
    results: Sequence[Any] = run_program(
        module, arguments_by_name(module, {n: values[n] for n in names})
    )
    caches = {names[a]: results[r] for r, a in program.updates.items()}
    (logits,) = (r for i, r in enumerate(results) if i not in program.updates)
    return logits, caches
