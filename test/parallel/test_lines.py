"""
A program carries the lines of the user's module: in `program.py`, in errors, and in
profiles as ranges of its parts.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from support import parallel_source
from support.parallel_lines import named_lines
from support.ranks import run_ranks
from support.thoroughness import sampled

PLANS: list[dict[str, Any]] = [dict(d=2), dict(t=2), dict(d=2, zero=3)]


def line(text: str) -> str:
    """Returns `file:line` of the only line of the module's code with this text."""
    lines = inspect.getsource(parallel_source).splitlines()
    (found,) = [number for number, li in enumerate(lines, 1) if text in li]
    return f"support/parallel_source.py:{found}"


@pytest.mark.parametrize("options", sampled(PLANS, 2), ids=str)
def test_lines_are_in_programs_errors_and_profiles(options: dict[str, Any]) -> None:
    lookup, block = line("x = self.words(ids)"), line("return x + torch.tanh")
    for found in run_ranks(2, named_lines, options):
        assert {lookup, block} <= set(found["comments"])
        assert "layers.0.norm" in found["ranges"]
        assert "layers.1.linear" in found["ranges"]
        if options.get("t") != 2:  # a rank's part of a table hides rows of others
            assert len(found["notes"]) == 2
        for (note,) in found["notes"]:
            assert note.startswith(f"in {lookup}, self.words (line ")
