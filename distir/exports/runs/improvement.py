"""
Searches for a faster run near a given run, among the plans that the run's training
system supports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from xdsl.utils.exceptions import VerifyException

from distir.errors import DistIRError
from distir.exports.runs.prediction import Prediction, Predictor
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.system import System
from distir.solver.clock import Clock


@dataclass(frozen=True)
class Improvement:
    """
    The fastest run found, its prediction, and the number of predicted runs (`judged`).
    """

    settings: RunSettings
    prediction: Prediction
    judged: int


def improved(
    settings: RunSettings,
    prediction: Prediction,
    system: System,
    predictor: Predictor,
    clock: Clock,
    on_better: Callable[[RunSettings, Prediction], None] | None = None,
) -> Improvement:
    """
    Returns the fastest run found by a local search. The search starts from the run
    `settings`, which has the prediction `prediction`. The global batch and the number
    of devices stay the same. Each round tries all single changes of the best run so
    far. The search ends when no change helps, or when `clock` has no time left for
    another prediction. A run that fits into memory beats a run that does not.
    `on_better` is called with each better run and its prediction.
    """
    best, result = settings, prediction
    seen, judged = {settings}, 0
    slowest = 0.0
    while True:
        before = best
        for other in _neighbours(best):
            if other in seen or not _can_run(other, system):
                continue
            if clock.left < slowest:
                return Improvement(best, result, judged)
            seen.add(other)
            begin = clock.seconds
            try:
                found = predictor.predict(other, system.vocabulary(other))
            except (DistIRError, VerifyException):
                continue
            finally:
                slowest = max(slowest, clock.seconds - begin)
            judged += 1
            if (not found.fits, found.seconds) < (not result.fits, result.seconds):
                best, result = other, found
                if on_better is not None:
                    on_better(best, result)
        if best == before:
            return Improvement(best, result, judged)


def _can_run(settings: RunSettings, system: System) -> bool:
    """
    Whether the degrees and the batch of a run fit its devices and model, and `system`
    supports the plan.
    """
    try:
        settings.check("the plan")
        system.write(settings, {}, {})
    except DistIRError:
        return False
    return settings.layers % (settings.p * max(settings.chunks, 1)) == 0


def _neighbours(s: RunSettings) -> Iterator[RunSettings]:
    """
    Yields the runs that differ from `s` by one change, in the order in which the
    changes usually matter.
    """
    for micro in (2 * s.micro_batch, s.micro_batch // 2):
        if micro:
            yield replace(s, micro_batch=micro)
    for checkpoint in ("selective", "none", "whole"):
        yield replace(s, checkpoint=checkpoint)
    for p in (s.p // 2, 2 * s.p):
        if p:
            chunks = s.chunks if p > 1 else 0
            yield replace(s, p=p, chunks=chunks, schedule=s.schedule if chunks else "")
    for t in (s.t // 2, 2 * s.t):
        if t and not s.heads % t:
            yield replace(s, t=t, sequence_parallel=s.sequence_parallel and t > 1)
    for a, b in ((2, 1), (1, 2)):
        if s.t % a == 0 and s.p % b == 0 and a * b > 1:
            t, p = s.t // a * b, s.p // b * a
            if not s.heads % t and not s.chunks:
                yield replace(s, t=t, p=p)
    if s.t > 1:
        yield replace(s, sequence_parallel=not s.sequence_parallel)
    if s.p > 1:
        for chunks in (2, 4, 0):
            schedule = "interleaved-1f1b" if chunks else ""
            yield replace(s, chunks=chunks, schedule=schedule)
    for zero in (1, 3, 2, 0):
        yield replace(s, zero=zero, r=1)
    yield replace(s, overlap="dp,params" if s.zero else "dp")
