"""
Chooses the communication that overlaps computation, by simulating the alternatives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist_attributes import BUCKET
from distir.errors import DistIRError, one_of
from distir.interpreters.simulator import Simulation, simulate
from distir.interpreters.simulator.profiles.profile import Profile
from distir.planning.annotations import add_notes
from distir.planning.distribution.buckets import bucket_collectives_of
from distir.program import reachable_functions, replace_program
from distir.transforms.overlap.across_calls import hoist_gathers, sink_reductions
from distir.transforms.overlap.kinds import KINDS, erase_kinds, write_kinds
from distir.transforms.overlap.paired_calls import pair_calls
from distir.transforms.overlap.pieces import products_in_pieces
from distir.transforms.overlap.place import place_functions
from distir.transforms.overlap.release import release_gradients

_WHAT = "overlap-communication"

_MOST_PIECES = 8
"""
The largest number of pieces in which a product is computed, so that the pieces that are
done are reduced while others are computed.
"""


@dataclass(frozen=True)
class Combination:
    """
    A way in which communication overlaps computation. `kinds` are the kinds of
    communication that overlap. With `hoist`, gathers move out of functions. With
    several `pieces`, products are computed in pieces; `gathered` includes products of
    gathered rows. With `paired`, forward and backward passes of a pipeline with
    all-to-alls are computed beside each other.
    """

    kinds: frozenset[str]
    hoist: bool = False
    pieces: int = 1
    gathered: bool = False
    paired: bool = False


class Overlapped(NamedTuple):
    """
    The result of `overlap_communication`: the simulation of the program, and the
    combination that was chosen, or None if nothing was gained.
    """

    simulation: Simulation
    combination: Combination | None


def overlap_communication(
    module: ModuleOp,
    ahead: int = 1,
    kinds: Collection[str] = KINDS,
    *,
    profiles: Sequence[str | Path | Profile] = (),
    before: Simulation | None = None,
    tried: Sequence[Combination] = (),
) -> Overlapped:
    """
    Lets communication run while devices compute, where this is faster and fits into
    memory. Changes the distributed program in place, adds a note on the gain, and
    returns the simulation of the result.

    `kinds` are the kinds of communication that may overlap. `ahead` is the number of
    gathered parameters whose uses may lie between the start of a gather and the use of
    its result. Simulations use `profiles`; `before` is the simulation of the unchanged
    program, if known. If `tried` is given, only these combinations are tried. A program
    with buckets gets new buckets. Raises DistIRError if `ahead` is below 1 or a kind
    does not exist.
    """
    if ahead < 1:
        raise DistIRError(
            f"{_WHAT}: parameters cannot be gathered ahead={ahead} "
            f"uses early; choose 1 or more"
        )
    for kind in kinds:
        one_of("kind of communication", kind, KINDS, _WHAT)
    before = before or simulate(module, profiles=profiles)
    apart = module.clone()
    has_buckets = _take_apart(apart)
    peak = max(before.peak_memory_bytes)
    # A program that does not fit is not made worse by one that does not fit either.
    limit = peak if before.fits else None
    best, chosen, after = _rank(before, limit), None, before
    kept: Combination | None = None

    def gains(combination: Combination) -> bool:
        """
        Tries a combination of overlaps, and keeps the program if it is the best so far.
        Returns whether it is.
        """
        nonlocal best, chosen, after, kept
        copy = _overlapped(apart, ahead, combination)
        if copy is None:
            return False
        if has_buckets:
            bucket_collectives_of(copy)
        release_gradients(reachable_functions(copy))
        result = simulate(copy, profiles=profiles)
        rank = _rank(result, limit)
        if rank[:2] >= best[:2] and (chosen is None or rank >= best):
            return False
        best, chosen, after, kept = rank, copy, result, combination
        return True

    for combination in tried or _attempts(kinds):
        gains(combination)
    if "tp" in kinds and not tried:
        # Twice as many pieces are tried as long as that is faster.
        asked, pieces = frozenset(kinds), 2
        for gathered in (False, True):
            while pieces <= _MOST_PIECES and gains(
                Combination(asked, _hoists(kept), pieces, gathered)
            ):
                pieces *= 2
            pieces = max(2, pieces // 2)
        gains(Combination(asked, _hoists(kept), paired=True))
    if chosen is None:
        add_notes(module, [f"{_WHAT}: nothing gained; left as it is"])
        return Overlapped(before, None)
    replace_program(module, chosen)
    note = f"{_WHAT}: step time {after.step_time_s:.4g} s instead of {before.step_time_s:.4g} s"
    if max(after.peak_memory_bytes) != peak:
        note += f", peak memory {max(after.peak_memory_bytes)} B instead of {peak} B"
    add_notes(module, [note])
    return Overlapped(after, kept)


def _hoists(combination: Combination | None) -> bool:
    """Whether a combination, if there is one, moves gathers out of functions."""
    return combination is not None and combination.hoist


def _attempts(kinds: Collection[str]) -> list[Combination]:
    """Returns the combinations that are tried first, without products in pieces."""
    asked = frozenset(kinds)
    found = [Combination(asked, hoist=True)] if "params" in asked else []
    found += [Combination(asked)]
    fewer = asked - {"tp", "params"}
    return found if fewer in (asked, frozenset()) else [*found, Combination(fewer)]


def _take_apart(module: ModuleOp) -> bool:
    """
    Replaces each bucket by one message per collective, in place. Returns whether the
    program had buckets.
    """
    found = [op for op in module.walk() if BUCKET in op.attributes]
    for op in found:
        del op.attributes[BUCKET]
    return bool(found)


def _overlapped(
    module: ModuleOp, ahead: int, combination: Combination
) -> ModuleOp | None:
    """
    Returns a copy of a program in which communication overlaps computation as in
    `combination`. Parameters are gathered `ahead` uses early. Returns None if there are
    no gathers to move, no products to cut, or no calls to join.
    """
    copy = module.clone()
    write_kinds(copy)
    kinds, pieces = combination.kinds, combination.pieces
    if pieces > 1 and not products_in_pieces(
        copy, pieces, gathered=combination.gathered
    ):
        return None
    sink_reductions(copy, kinds)
    if combination.hoist and not hoist_gathers(copy):
        return None
    if combination.paired and not pair_calls(copy):
        return None
    place_functions(reachable_functions(copy), ahead, kinds)
    erase_kinds(copy)
    return copy


def _rank(result: Simulation, limit: int | None) -> tuple[bool, float, int]:
    """
    Returns a sort key that puts better programs first: programs that fit into memory,
    then faster programs, then programs that need less memory. A program fits if its
    peak is at most `limit` bytes, or if `limit` is None.
    """
    peak = max(result.peak_memory_bytes)
    fits = result.fits or limit is None or peak <= limit
    return (not fits, result.step_time_s, peak)
