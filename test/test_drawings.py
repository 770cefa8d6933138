"""The drawings of the documentation are those that their sources describe."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from website.drawings import FIGURES, draw, sources  # noqa: E402


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem)
def test_a_drawing_is_up_to_date(source: Path) -> None:
    assert source.with_suffix(".svg").read_text() == draw(source), "make drawings"


def test_every_drawing_is_on_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        Path(path).name
        for page in pages
        for path in re.findall(r"!\[[^]]*\]\(([^)]+\.svg)\)", page.read_text())
    }
    assert {source.with_suffix(".svg").name for source in sources()} <= shown
    assert FIGURES.is_dir()


def test_a_layout_is_drawn_as_it_is(tmp_path: Path) -> None:
    """Of 8 x 8 elements on two devices, each has a box of half the sheet."""
    source = tmp_path / "one.toml"
    source.write_text(
        '[[panel]]\nkind = "layouts"\ntitle = "t"\nmesh = { t = 2 }\n'
        '[[panel.tensor]]\nname = "x"\nshape = [8, 8]\nlayout = "[{}, {t}]"\nnote = "n"\n'
    )
    boxes = re.findall(
        r'<rect class="cell" .*width="([\d.]+)" height="([\d.]+)"', draw(source)
    )
    sheets = re.findall(
        r'<rect class="sheet" .*width="([\d.]+)" height="([\d.]+)"', draw(source)
    )
    assert len(boxes) == len(sheets) == 2
    for (width, height), (whole, full) in zip(boxes, sheets, strict=True):
        assert float(width) * 2 == float(whole) and height == full
