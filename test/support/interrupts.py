"""Interrupts searches as if the user had pressed Ctrl-C."""

from __future__ import annotations

import pytest

from distir.planning.grid import Plan, Result, Simulated
from distir.planning.grid.evaluate import Evaluator


def interrupt_after(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """
    Interrupts every search after so many evaluations; the returned list holds how many are
    left, and may be changed.
    """
    original, left = Evaluator.evaluate, [count]

    def evaluate(
        self: Evaluator, configuration: Plan, known: Simulated | None = None
    ) -> Result:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return original(self, configuration, known)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    return left
