"""The examples of docs/python.md run as they are written there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ranks")
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) >= 5
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    made = {path.name for path in tmp_path.iterdir()}
    assert made >= {"step.mlir", "report.html", "package", "plan.json", "best.mlir"}
    assert names["plan"].devices == 4 and names["dist"].notes == []
