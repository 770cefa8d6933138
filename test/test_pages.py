"""Pages that can be followed are followed: what they show is what comes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.thoroughness import chosen

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from website.pages import Shown, follow  # noqa: E402

FOLDERS = ("tutorials", "how-to", "concepts")
PAGES = sorted(p for name in FOLDERS for p in (ROOT / "docs" / name).glob("*.md"))
# The page about JAX is followed by test/jax/test_tutorial.py, where JAX is installed.
FOLLOWED = [p for p in PAGES if p.name != "jax-step.md"]
NAMES = ["README.md", *(p.relative_to(ROOT).as_posix() for p in FOLLOWED)]


@pytest.mark.parametrize("name", chosen(NAMES, ["docs/concepts/programs.md"]))
def test_a_page_shows_what_comes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for shown in follow(ROOT / name, tmp_path):
        assert shown.is_right, (shown.commands, shown.got)


def test_pages_are_short() -> None:
    assert len(PAGES) > 15
    for page in PAGES:
        assert len(page.read_text().split()) <= 1500, page


@pytest.mark.parametrize(
    ("expected", "got", "is_right"),
    [
        ("step time 4 ms\n", "step time 4  ms\n", True),
        ("step time 4 ms\n", "step time 4 s\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("...\nd 1\n", "c\nd 1\n", True),
        ("a\nb\n", "a\n", False),
        ("a\n", "a\nb\n", False),
        ("a\nb\n...\n", "a\n", False),
        ("", "a\n", False),
        ("────── 1e-07\n", "───────────── 0\n", True),
        ("loss 4.3066\n", "loss 4.3068\n", True),
        ("loss 4.3066\n", "loss 4.3566\n", False),
        ("loss 4.3066\n", "loss -4.3066\n", False),
        ("158 outputs\n", "157 outputs\n", False),
        ("1,098 ops\n", "1,099 ops\n", False),
        ("5903 ops\n", "5904 ops\n", False),
        ("5.903e+03\n", "5904\n", True),
        ("0.0001854 s\n", "0.0001954 s\n", False),
        ("torch 2.13.0\n", "torch 2.15.1\n", True),
        ("4.19 MB of 80 GB\n", "4.19 MB of 40 GB\n", False),
    ],
)
def test_outputs_are_compared(expected: str, got: str, is_right: bool) -> None:
    assert Shown("distir", expected, got, (0, 0)).is_right == is_right


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\ndistir show missing.mlir\n```\n")
    with pytest.raises(RuntimeError, match=r"page\.md: distir show missing\.mlir: "):
        list(follow(page, tmp_path))
