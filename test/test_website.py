"""The site of the documentation: what there is has its place on a page that is made."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import distir
from distir import scheduling
from distir.dialects import get_all_dialects
from distir.passes import get_all_passes
from distir.tools.cli import COMMANDS, argument_parser

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from website import commands, gallery, reference  # noqa: E402

MAKEFILE = (ROOT / "Makefile").read_text()
MENU = re.findall(r"(\S+\.(?:md|ipynb))$", (ROOT / "mkdocs.yml").read_text(), re.M)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The pages of the reference by path."""
    return reference.pages()


def section(page: str, heading: str) -> str:
    """The text below a heading of a page, up to the next one."""
    _, found, text = page.partition(f"\n## {heading}\n")
    assert found, heading
    return text.partition("\n## ")[0]


def test_every_page_is_in_the_menu(pages: dict[str, str]) -> None:
    docs = ROOT / "docs"
    written = {p.relative_to(docs).as_posix() for p in docs.rglob("*.md")}
    notebooks = {f"examples/{p.name}" for p in (ROOT / "examples").glob("*.ipynb")}
    assert len(notebooks) >= 2
    made = {"index.md", "gallery.md", *pages}
    assert sorted(MENU) == sorted(written | notebooks | made)


def test_every_pass_has_its_options(pages: dict[str, str]) -> None:
    for name, load in get_all_passes().items():
        text, options = section(pages["reference/passes.md"], name), fields(load())  # pyright: ignore[reportArgumentType]
        assert len(text.split("|")[0].split()) > 5, name
        for option in options:
            assert f"| `{option.name.replace('_', '-')}` | `" in text, (name, option)


def test_declared_options_are_in_a_table(pages: dict[str, str]) -> None:
    distributing = section(pages["reference/options.md"], "Distributing")
    (row,) = (row for row in distributing.splitlines() if "| `--no-sync` |" in row)
    assert "| `False` | distribute, show, simulate, explore | with --zero 2" in row
    assert "PyTorch's no_sync" in row
    searching = section(pages["reference/options.md"], "Searching")
    assert "| `--no-sync` | `()` |" in searching and "with --auto both" in searching
    zero = section(pages["reference/passes.md"], "distribute")
    assert "| `zero` | `int` | `0` | ZeRO stage of a training step" in zero


def test_every_op_is_on_the_page_of_its_dialect(pages: dict[str, str]) -> None:
    for name, load in get_all_dialects().items():
        page = pages[f"reference/dialects/{name}.md"]
        for op in load().operations:
            if name == "onnx":
                assert f"[`{op.name}`](https://onnx.ai/" in page
            else:
                text = section(page, op.name)
                assert text.split("|")[0].strip(), op.name
    page = pages["reference/dialects/collective.md"]
    gather = section(page, "collective.rank.all_gather")
    assert "| `source` | operand | one |" in gather
    assert "| `group` | property | one |" in gather
    assert "| `run` | property | one or none |" in gather


def test_every_command_has_its_options(pages: dict[str, str]) -> None:
    page = pages["reference/commands.md"]
    for name in COMMANDS:
        text, parser = section(page, f"distir {name}"), argument_parser(name)
        for action in _command(parser, name)._actions:
            assert all(option in text for option in action.option_strings)
        assert max(map(len, text.splitlines())) <= int(reference.WIDTH)
    # Models have options of their own.
    assert "--experts" in section(page, "distir build moe")


def _command(parser: Any, name: str) -> Any:
    return next(a.choices[name] for a in parser._actions if a.dest == "command")


def test_every_function_is_documented(pages: dict[str, str]) -> None:
    text = pages["reference/python.md"]
    for name in distir._NAMES:
        assert f"heading: distir.{name}\n" in text
    for place in re.findall(r"^::: (\S+)$", text, re.M):
        module, _, name = place.rpartition(".")
        assert hasattr(__import__(module, fromlist=[name]), name), place
    for name in scheduling.__all__:
        assert f"::: distir.scheduling.{name}\n" in pages["reference/scheduling.md"]


def test_the_gallery_is_made_of_commands() -> None:
    made = [*gallery.PROGRAMS]
    for entry in gallery.ENTRIES:
        made.append(entry.command)
        assert f" {entry.file}" in entry.command
    for command in made:
        argument_parser().parse_args(command.split()[1:])


def test_a_long_command_is_folded_at_its_options() -> None:
    for entry in gallery.ENTRIES:
        lines = commands.folded(entry.command).split(" \\\n")
        assert max(map(len, lines)) <= 90 and len(lines) <= 2
        assert " ".join(map(str.strip, lines)) == entry.command
        assert all(line.startswith("    -") for line in lines[1:])


def test_a_command_of_the_gallery(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    commands.run("distir build mlp --layers 1 --d-model 4 --batch 2 -o m.mlir")
    printed = commands.run("distir simulate m.mlir --cluster cpu --html r.html")
    assert printed.startswith("step time") and (tmp_path / "r.html").exists()
    for wrong in ("distir simulate m.mlir", "distir simulate m.mlir --zero 9"):
        with pytest.raises(RuntimeError, match="error: "):
            commands.run(wrong)


def test_the_site_is_built_in_ci() -> None:
    assert "\nmake docs" in (ROOT / ".ci" / "run").read_text()
    build = re.search(r"^docs:.*\n(?:\t.*\n)*?\t.*mkdocs build(.*)", MAKEFILE, re.M)
    assert build is not None and "--quiet" not in build[1].split("#")[0]
    assert re.search(r"^docs:.*\n(?:\t.*\n)*?\t.*website\.prose$", MAKEFILE, re.M)
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "\nstrict: true\n" in settings and "execute: true" in settings
