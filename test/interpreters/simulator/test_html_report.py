"""The HTML report: one file, nothing from a network, the simulation's numbers."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.cost_programs import (
    MACHINES,
    STRATEGIES,
    cluster,
    distributed,
    parse,
    uneven,
)
from support.thoroughness import sampled
from support.training_programs import training_gpt, training_mlp

from distir.errors import DistIRError
from distir.interpreters.simulator import Simulation, simulate, write_html
from distir.interpreters.simulator.reports import html_report
from distir.interpreters.simulator.reports.html_report import report_data
from distir.tools.reports.layout_tables import LayoutTables

VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """Checks that elements nest; keeps scripts, ids, and what refers to other files."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.references: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.references += [(k, v) for k, v in attrs if k in ("src", "href", "action")]
        if (name := found.get("id")) is not None:
            self.ids.append(name)
        if tag not in VOID:
            self._open.append(tag)
        if tag == "script":
            self.scripts.append((found, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)

    @property
    def data(self) -> dict[str, Any]:
        """The JSON data in it."""
        (text,) = [
            text
            for attributes, text in self.scripts
            if attributes.get("type") == "application/json"
        ]
        return json.loads(text)


def page_of(result: Simulation, tmp_path: Path, title: str = "program") -> Page:
    write_html(result, tmp_path / "report.html", title)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "http://" not in text and "https://" not in text and "//cdn" not in text
    assert "@import" not in text and "url(" not in text
    page = Page(text)
    assert page.references == []
    assert len(page.ids) == len(set(page.ids))
    return page


@pytest.mark.parametrize("options", sampled(STRATEGIES, 3), ids=str)
def test_its_numbers_are_those_of_the_simulation(options, tmp_path: Path):
    result = simulate(distributed(training_gpt(), MACHINES, **options))
    data = page_of(result, tmp_path).data
    for name in (
        "step_time_s",
        "throughput_samples_per_s",
        "mfu",
        "hfu",
        "exposed_communication",
        "bubble_fraction",
        "ops",
        "cluster",
    ):
        assert data[name] == getattr(result, name)
    assert data["devices"] == len(result.devices)
    assert sum(group["count"] for group in data["groups"]) == len(result.devices)
    assert data["groups_in_all"] == len(data["groups"]) == len(data["timelines"])
    for group, shown in zip(result.groups, data["groups"], strict=True):
        for name in (
            "peak_memory_bytes",
            "memory_bytes",
            "communication_bytes",
            "flops",
            "compute_s",
            "exposed_communication_s",
            "waiting_s",
        ):
            assert shown[name] == getattr(result, name)[group.index]
    step = result.step_time_s
    for group, causes, memory in zip(
        data["groups"], data["causes"], data["memory"], strict=True
    ):
        parts = [sum(row[i] for row in causes) for i in (2, 3, 4)]
        assert sum(parts) == pytest.approx(step)
        assert parts[0] == pytest.approx(group["compute_s"])
        assert parts[2] == pytest.approx(group["waiting_s"], abs=1e-9 * step)
        assert memory["peak_bytes"] == group["peak_memory_bytes"]
        assert sum(memory["by_kind"].values()) == group["peak_memory_bytes"]
        columns = zip(*memory["curve"], strict=True)
        assert max(map(sum, columns)) == group["peak_memory_bytes"]
    for group, timeline in zip(data["groups"], data["timelines"], strict=True):
        seconds = sum(block[1] for block in timeline["blocks"])
        communicates = sum(block[2] for block in timeline["blocks"])
        assert seconds - communicates == pytest.approx(group["compute_s"])
        names = [block[3] for block in timeline["blocks"]]
        assert max(names) < len(data["names"])


def test_its_tables_are_those_that_show_prints(tmp_path: Path):
    module = distributed(training_gpt(), MACHINES, d=2, t=2, zero=1)
    data = page_of(simulate(module), tmp_path).data
    shown = LayoutTables.of(module, "program", None, ())
    assert [(a[0], a[1], a[4], a[6]) for a in data["arguments"]] == [
        (a.name, len(a.names), a.split_text, a.local_bytes) for a in shown.arguments
    ]
    assert any("t" in split for _, _, _, _, split, *_ in data["arguments"])
    assert shown.communication
    assert data["sent"] == [
        [s.scope, s.op, ",".join(s.axes), s.times, s.size] for s in shown.communication
    ]


def test_the_script_finds_its_elements(tmp_path: Path):
    page = page_of(simulate(training_mlp(), cluster(1)), tmp_path)
    (script,) = [text for attributes, text in page.scripts if not attributes]
    wanted = set(re.findall(r'\bby\("([^"]+)"\)', script))
    wanted |= set(re.findall(r'getElementById\("([^"]+)"\)', script))
    assert wanted and wanted <= set(page.ids)
    assert "innerHTML" not in script and "document.write" not in script


def test_the_script_is_javascript(tmp_path: Path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    page = page_of(simulate(training_mlp(), cluster(1)), tmp_path)
    (script,) = [text for attributes, text in page.scripts if not attributes]
    (tmp_path / "script.js").write_text(script, "utf-8")
    done = subprocess.run([node, "--check", tmp_path / "script.js"], check=False)
    assert done.returncode == 0


NASTY = '</script><script>alert(1)</script><!-- & "quoted" \\u0041'


def test_strings_of_the_program_are_data(tmp_path: Path):
    name = json.dumps(NASTY)
    module = parse(f"""
        func.func @main(%x: tensor<4xf32> {{dist.role = "input", dist.name = {name}}}) -> tensor<4xf32> {{
          %y = onnx.Relu(%x) {{scope = {name}}} : (tensor<4xf32>) -> tensor<4xf32>
          func.return %y : tensor<4xf32>
        }}""")
    nasty = str(json.loads(name))
    page = page_of(simulate(module, cluster(1, launch=1.0)), tmp_path, title=nasty)
    assert len(page.scripts) == 2  # the data and the code
    assert page.data["title"] == nasty
    assert f"onnx.Relu {nasty}" in page.data["names"]
    assert [f"input {nasty}", "4"] in page.data["configuration"]


def test_one_device_stands_for_a_mesh_of_any_size(tmp_path: Path):
    def size(devices: int) -> int:
        module = distributed(training_mlp(batch=4096), cluster(devices), d=devices)
        data = page_of(simulate(module), tmp_path).data
        assert [group["count"] for group in data["groups"]] == [devices]
        return (tmp_path / "report.html").stat().st_size

    assert size(1024) < 1.1 * size(4)


def test_devices_that_differ_are_shown_one_by_one(tmp_path: Path):
    data = page_of(simulate(distributed(training_mlp(), uneven(), d=4)), tmp_path).data
    assert [group["devices"] for group in data["groups"]] == ["0-1, 3", "2"]


def test_long_programs_are_shown_in_blocks(monkeypatch: pytest.MonkeyPatch):
    result = simulate(distributed(training_gpt(), MACHINES, d=2, p=2, k=2))
    full = report_data(result, "program")
    assert full["resolution_s"] == 0.0
    monkeypatch.setattr(html_report, "SHOWN_BLOCKS", 100)
    monkeypatch.setattr(html_report, "SHOWN_CAUSES", 10)
    short = report_data(result, "program")
    assert short["resolution_s"] > 0
    for few, all_ in zip(short["timelines"], full["timelines"], strict=True):
        assert len(few["blocks"]) <= 100 < len(all_["blocks"])
        for part in (2, 5):  # communication and ops are kept
            sums = [sum(b[part] for b in t["blocks"]) for t in (few, all_)]
            assert sums[0] == pytest.approx(sums[1])
    for few, all_ in zip(short["causes"], full["causes"], strict=True):
        assert len(few) == 11 and few[-1][1] == f"{len(all_) - 10} more"
        for part in (2, 3, 4):
            sums = [sum(row[part] for row in rows) for rows in (few, all_)]
            assert sums[0] == pytest.approx(sums[1], abs=1e-15)


def test_many_groups_of_devices_are_cut(monkeypatch: pytest.MonkeyPatch):
    result = simulate(distributed(training_gpt(), MACHINES, p=2, k=2))
    monkeypatch.setattr(html_report, "SHOWN_GROUPS", 1)
    data = report_data(result, "program")
    assert len(data["timelines"]) == len(data["memory"]) == 1
    assert data["groups_in_all"] == len(data["groups"]) == 2


def test_a_step_that_takes_no_time(tmp_path: Path):
    module = parse("""
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          func.return %x : tensor<4xf32>
        }""")
    data = page_of(simulate(module, cluster(1)), tmp_path).data
    assert data["step_time_s"] == data["mfu"] == 0
    assert data["memory"][0]["by_kind"]["inputs"] == 16


def test_an_unwritable_file_is_an_error(tmp_path: Path):
    result = simulate(training_mlp(), cluster(1))
    with pytest.raises(DistIRError, match=r"cannot write .*No such file"):
        write_html(result, tmp_path / "missing" / "report.html", "program")
