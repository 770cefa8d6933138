"""What tools print while they work."""

from __future__ import annotations

from io import StringIO
from threading import Event

import pytest

from distir.tools.reports import reporting


def test_a_bar_is_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A line after two seconds and then every ten seconds, with the time that is left, but
    none for what is soon done, and none at the end.
    """
    now = [0.0]
    monkeypatch.setattr(reporting, "monotonic", lambda: now[0])
    monkeypatch.setattr(reporting, "FIRST_LINE_AFTER", 2.0)
    with reporting.progress_bar("judging plans", 40) as advance:
        for _ in range(20):
            now[0] += 2.1
            advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"note: judging plans: {n} of 40, about {left} s left"
        for n, left in ((2, 39.9), (12, 29.4), (22, 18.9), (32, 8.4))
    ]
    with reporting.progress_bar("judging plans", 2) as advance:
        advance(1)
        advance(1)
    assert capsys.readouterr().err == ""


def test_long_work_is_named_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reporting, "FIRST_LINE_AFTER", 30.0)
    with reporting.progress("running a.mlir"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(reporting, "FIRST_LINE_AFTER", 0.01)
    monkeypatch.setattr(reporting, "_SECONDS_BETWEEN_LINES", 0.01)
    printed: list[str] = []
    enough = Event()

    def note(message: str) -> None:
        printed.append(message)
        if len(printed) == 3:
            enough.set()

    monkeypatch.setattr(reporting, "note", note)
    with reporting.progress("running a.mlir"):
        assert enough.wait(60)
    count = len(printed)
    assert printed[:3] == ["running a.mlir ...", *["running a.mlir: 0 s"] * 2]
    error = pytest.raises(ValueError, match="of the block")
    with error, reporting.progress("running b.mlir"):
        raise ValueError("of the block")
    assert len([line for line in printed if "a.mlir" in line]) == count


def test_a_notebook_does_not_take_tables_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    text = StringIO()
    reporting.table(("plan", "time"), [("d=2", "4 ms")], text)
    assert "d=2" in text.getvalue()
