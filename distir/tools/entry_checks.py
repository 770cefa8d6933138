"""
Checks programs with several entries: compares each entry of two programs on the same
arguments, and decode with prefill within one program.

Decode is compared with prefill on prompts of different lengths. Prefill runs on each
prompt without its last token, and decode on that token. Prefill also runs on the whole
prompt. Both ways must give the same logits, even if the cache holds other numbers
before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist_attributes import FEEDS, LIMIT
from distir.errors import DistIRError
from distir.frontends.serving import DECODE, PREFILL
from distir.program import Program, entry_points
from distir.program.entries import one_entry
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
    Compares two programs with one or several entries on the same arguments: those in
    `weights` and `given`, by name, and random values for the others. The other
    parameters are those of `compare`. Raises DistIRError if the programs have different
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
    program. `weights` and `given` have arguments by name; others are random. The other
    parameters are those of `compare`. Raises DistIRError if the programs have different
    entries or results.
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
    Returns the arguments of an entry by name. Paddings and positions that `given` does
    not contain are random values within the range that generation uses.
    """
    from distir.tools.arguments.program import whole_arguments

    own = _own(module, weights), _own(module, given)
    values = whole_arguments(module, path, *own, seed)
    random = np.random.default_rng(seed)
    fed = _fed(module)
    for kind, name in fed.items():
        if kind == "tokens" or name in given:
            continue
        high = values[fed["tokens"]].shape[1] if kind == "padding" else _slots(module)
        values[name] = random.integers(0, high, values[name].shape)
    return values


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


def _slots(module: ModuleOp) -> int:
    """
    Returns the largest number of tokens of a sequence in an entry, or 1 if it has no
    limit.
    """
    found = [LIMIT.of(argument.attributes) for argument in Program(module).arguments]
    return min((limit for limit in found if limit is not None), default=1)


def _decode_after_prefill(
    entries: Mapping[str, ModuleOp],
    path: str | Path,
    weights: Arrays,
    given: Arrays,
    seed: int,
    tolerance: float | None,
) -> OutputDifference:
    """
    Returns the difference between the logits of decode and those of prefill. Raises
    DistIRError if prefill takes prompts of one token only.
    """
    prefill, decode = entries[PREFILL], entries[DECODE]
    values = _values(prefill, path, weights, given, seed)
    fed, fed_decode = _fed(prefill), _fed(decode)
    prompts = values[fed["tokens"]]
    batch, length = prompts.shape
    if length < 2:
        raise DistIRError(
            f"{path}: prefill takes prompts of one token, so that decode cannot be "
            f"compared with it; import the model with a larger --prompt"
        )
    counts = np.random.default_rng(seed).integers(2, length + 1, batch)
    before, whole = np.zeros_like(prompts), np.zeros_like(prompts)
    for row, count in enumerate(counts):
        own = prompts[row, :count]
        before[row, length - count + 1 :] = own[:-1]
        whole[row, length - count :] = own
    last = prompts[np.arange(batch), counts - 1][:, None]
    padding = fed["padding"]
    expected, _ = _run(
        prefill, values | {fed["tokens"]: whole, padding: length - counts}
    )
    _, caches = _run(
        prefill, values | {fed["tokens"]: before, padding: length - counts + 1}
    )
    arguments = _values(decode, path, weights, given, seed) | caches
    arguments |= {fed_decode["tokens"]: last, fed_decode["positions"]: counts - 1}
    actual, _ = _run(decode, arguments)
    absolute, relative = largest_difference(expected, actual.reshape(expected.shape))
    allowed = default_tolerance(expected.dtype) if tolerance is None else tolerance
    return OutputDifference("decode after prefill", absolute, relative, allowed)


def _run(module: ModuleOp, values: Values) -> tuple[npt.NDArray[Any], Values]:
    """Returns the logits of an entry, and the content of the cache after it by name."""
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
