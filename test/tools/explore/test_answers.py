"""Answers have the numbers of the commands that they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.command_line import succeed
from support.thoroughness import sampled

from distir.planning.grid.evaluate import Evaluator
from distir.tools.explore.answers import Explorer, encoded
from distir.tools.explore.jobs import GivenUp
from distir.tools.explore.models import KnownPrograms, read_files
from distir.tools.explore.state import Setup

TINY = "--layers 2 --d-model 32 --heads 4 --vocab 64 --batch 8 --seq 16 --training"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explore")
    succeed("build", "gpt", *TINY.split(), "-o", path / "tiny.mlir")
    return path


@pytest.fixture(scope="module")
def explorer(folder: Path) -> Iterator[Explorer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        programs = KnownPrograms(read_files([Path("tiny.mlir")]))
        yield Explorer(Setup(programs.files, "dgx-h100"), programs)


def answer(explorer: Explorer, query: str) -> dict[str, Any]:
    """All parts of an answer in one."""
    found: dict[str, Any] = {}
    for part in explorer.answer(query):
        assert encoded(part).endswith(b"\n")
        found |= part
    return found


@pytest.mark.parametrize(
    "query",
    sampled(
        [
            "d=2&t=2&zero=1",
            "p=2&k=4&checkpoint=full",
            "d=4&overlap=on&zero=3&no_sync=on&k=2",
            "c=2&context=ring&buckets=off",
            "model=moe&layers=2&d_model=32&heads=2&vocab=64&seq=8&batch=8&e=2&cluster=dgx2",
        ],
        2,
    ),
)
def test_its_numbers_are_those_of_its_command(
    explorer: Explorer, query: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    found = answer(explorer, query)
    for line in found["commands"]["simulate"].splitlines():
        printed = succeed(*shlex.split(line)[1:]).output
    numbers = found["numbers"]
    assert printed.startswith(f"step time {numbers['step_time']}, ")
    assert f", {numbers['throughput']} samples/s, {numbers['ops']} ops" in printed
    shown = rf"MFU {numbers['mfu']}( \(HFU .*\))?, exposed communication {numbers['exposed']}"
    assert re.search(shown, printed)
    assert re.search(
        rf"\b{numbers['memory']}( \(.*\))? of {numbers['available']}", printed
    )
    assert found["report"]["step_time_s"] == numbers["step_time_s"]
    assert found["report"]["timelines"] and found["report"]["memory"]


def test_the_form_has_the_options_of_the_commands(explorer: Explorer):
    fields = {f["name"]: f for f in answer(explorer, "d=2")["fields"]}
    assert fields["d"]["values"] == ["1", "2", "4", "8"] and fields["d"]["value"] == "2"
    assert fields["zero"]["values"] == ["0", "1", "2", "3"]
    assert "full" in fields["checkpoint"]["values"]
    assert fields["k"]["values"] == ["1", "2", "4", "8"]  # a batch of 8
    assert not {"c", "e", "size", "schedule_file", "profile"} & fields.keys()
    found = answer(explorer, "e=2")
    assert "no mixture of experts" in found["error"]
    assert "e" in {f["name"] for f in found["fields"]}  # so that it can be changed


def test_plans_that_were_looked_at_are_drawn(explorer: Explorer):
    answer(explorer, "t=2")
    front = answer(explorer, "d=4")["front"]
    root = ElementTree.fromstring(front["svg"])
    name = "{http://www.w3.org/2000/svg}"
    links = {link.get("href"): link[0] for link in root.iter(f"{name}a")}
    assert len(links) == front["plans"] >= 2
    (shown,) = [dot for dot in links.values() if "shown" in str(dot.get("class"))]
    assert links["?model=tiny.mlir&cluster=dgx-h100&d=4"] is shown
    assert not list(root.iter(f"{name}style"))  # which the page's policy refuses
    best = front["rows"][0]
    assert f"?{best[1]}" in links and best[2].endswith("s")
    other = answer(explorer, "t=2&cluster=dgx2")["front"]
    assert other["plans"] == 1


def test_a_search_adds_estimates_that_hold(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
):
    """Also if a page could not wait for a plan, which is then begun again."""
    evaluate, interrupted = Evaluator.evaluate, list[object]()

    def interrupted_once(self: Evaluator, plan: Any, *rest: Any) -> Any:
        if len(interrupted) < 1:
            interrupted.append(plan)
            raise GivenUp
        return evaluate(self, plan, *rest)

    monkeypatch.setattr(Evaluator, "evaluate", interrupted_once)
    query = "cluster=v100-roce&devices=2&d=2&zero=1"
    parts = [part for part in explorer.search(query) if part]
    last = parts[-1]
    assert interrupted and last["done"] == last["total"] > 10
    rows = last["front"]["rows"]
    assert {row[4] for row in rows} == {"estimate"}
    words, found, time, memory, _ = rows[0]
    numbers = answer(explorer, found)["numbers"]
    assert (numbers["step_time"], numbers["memory"]) == (time, memory), words
    (row,) = [r for r in answer(explorer, found)["front"]["rows"] if r[1] == found]
    assert row[4] == ""


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("d=3&t=5", "needs 15 devices, but cluster @dgx_h100 has 8"),
        ("d=100000", "needs 100000 devices"),
        ("k=1000000000", "ask for at most"),
        ("k=3", "cannot be split evenly"),
        ("devices=12", "12 is not a multiple of 8"),
        ("devices=999999999", "cannot have 999999999 devices"),
        ("p=8", "the program has 3 layers"),
        ("zero=3", "choose a larger -d"),
        ("checkpoint=garbage", "there is no checkpoint policy 'garbage'"),
        ("schedule=nope&p=2", "there is none called 'nope'"),
        ("shard=x", "cannot read the split 'x'"),
        ("stages=nope&p=2", "no op of the forward pass is in scope 'nope'"),
        ("model=gpt&heads=5", "5 heads do not divide the model width"),
        ("model=gpt&layers=0", "argument --layers: '0' is not a positive whole number"),
        ("model=gpt&layers=99999999", "cannot be built"),
    ],
)
def test_settings_that_cannot_be_are_errors(
    explorer: Explorer, query: str, message: str, capsys: pytest.CaptureFixture[str]
):
    parts = list(explorer.answer(query))
    assert message in parts[-1]["error"]
    assert not any("numbers" in part for part in parts)
    assert capsys.readouterr() == ("", "")


def test_heads_that_are_not_divided_are_said(explorer: Explorer):
    """`distir simulate` computes attention whole on each device then; the page says so."""
    notes = answer(explorer, "t=3")["notes"]
    assert any("head" in note or "whole" in note for note in notes), notes


def test_a_bug_is_an_error_with_its_trace_in_the_terminal(
    explorer: Explorer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("not for users")

    monkeypatch.setattr("distir.tools.explore.answers.distribute_silently", broken)
    (error,) = [p["error"] for p in explorer.answer("d=8") if "error" in p]
    assert error.startswith("internal error (ZeroDivisionError")
    assert "Traceback" in capsys.readouterr().err
