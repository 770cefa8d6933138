"""What tools print while they work."""

from __future__ import annotations

import pytest

from distir.tools.reports import reporting


def test_progress_is_printed_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line every ten seconds, but none for what is soon done, and none at the end."""
    now = [0.0]
    monkeypatch.setattr(reporting, "monotonic", lambda: now[0])
    with reporting.progress_bar("judging plans", 40) as advance:
        for _ in range(20):
            now[0] += 2.1
            advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"note: judging plans: {n} of 40" for n in (10, 20, 30)]
    with reporting.progress_bar("judging plans", 2) as advance:
        advance(1)
        advance(1)
    assert capsys.readouterr().err == ""
