"""What the repository promises in files that nothing imports: these must agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import distir

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
AT_THE_ROOT = {
    *("README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("Makefile", "pyproject.toml", "lit.cfg.py", "mkdocs.yml"),
}


def recipe(target: str) -> list[str]:
    """The lines of a target of the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert found, target
    return [line.strip() for line in found[1].splitlines()]


def committed() -> list[str]:
    """The files of the repository, or of the folder where git knows nothing of it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is no checkout: git does not know its files")
    return done.stdout.splitlines()


def test_there_is_one_version() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    where = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    module, _, name = where.rpartition(".")
    assert getattr(__import__(module, fromlist=[name]), name) == distir.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", distir.__version__)
    assert f"\n## {distir.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    texts = [*(ROOT / "distir").rglob("*.py"), ROOT / "pyproject.toml"]
    written = [p.name for p in texts if f'"{distir.__version__}"' in p.read_text()]
    assert written == ["version.py"]


def test_the_licence_is_named() -> None:
    licence = PROJECT["project"]["license"]
    assert licence == "Apache-2.0 WITH LLVM-exception"
    text = (ROOT / "LICENSE").read_text()
    assert f"SPDX-License-Identifier: {licence}\n" in text
    assert "https://spdx.org/licenses/Apache-2.0.html" in text


def test_nothing_else_is_at_the_root() -> None:
    at_root = {path for path in committed() if "/" not in path}
    assert {name for name in at_root if not name.startswith(".")} == AT_THE_ROOT


def test_links_of_the_files_at_the_root_lead_somewhere() -> None:
    for name in AT_THE_ROOT:
        if name.endswith(".md"):
            for link in re.findall(
                r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text()
            ):
                assert (ROOT / link).exists(), (name, link)


def test_the_guide_is_short_and_names_targets_that_exist() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(guide.splitlines()) <= 100
    assert "docs/internals/adding.md" in guide
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", guide, re.M)):
        assert target == "install" or recipe(target)
    for path in re.findall(r"`((?:distir|test|bench)/[\w./]+\.(?:py|jsonl))`", guide):
        if "<name>" not in path and "my_pass" not in path:
            assert (ROOT / path).exists(), path


def test_pre_commit_runs_what_make_lint_runs() -> None:
    hooks = re.findall(
        r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.M
    )
    assert hooks == [line.replace("$(BIN)", ".venv/bin") for line in recipe("lint")]


def test_workflows_run_what_must_pass() -> None:
    workflows = ROOT / ".github" / "workflows"
    each_change = (workflows / "ci.yml").read_text()
    newest = (workflows / "newest.yml").read_text()
    assert re.search(r"run: \.ci/run$", each_change, re.M)
    assert re.search(r"run: .*\.ci/run$", newest, re.M) and "cron:" in newest
    versions = re.findall(r'"(3\.\d+)"', each_change)
    promised = [
        name.rpartition(" ")[2]
        for name in PROJECT["project"]["classifiers"]
        if name.startswith("Programming Language")
    ]
    assert versions == promised == ["3.11", "3.12", "3.13"]
    for variable in re.findall(r"variable: (\w+)", newest):
        assert re.search(rf"^{variable} \?=", MAKEFILE, re.M)
        assert any(f"$({variable})" in line for line in MAKEFILE.splitlines())
    assert {"make test", "make lint", "make docs"} <= set(
        re.findall(r"^(make \w+)", (ROOT / ".ci" / "run").read_text(), re.M)
    )


def test_every_folder_has_an_area() -> None:
    owners = (ROOT / ".github" / "CODEOWNERS").read_text()
    paths = re.findall(r"^/(\S+)/ +@", owners, re.M)
    assert all((ROOT / path).is_dir() for path in paths)
    folders = {
        path.rpartition("/")[0]
        for path in committed()
        if path.startswith("distir/") and path.count("/") == 2
    }
    assert len(folders) > 20 and folders <= set(paths)


def test_coverage_has_a_floor() -> None:
    assert PROJECT["tool"]["coverage"]["report"]["fail_under"] >= 80
    assert any("--cov" in line for line in recipe("coverage"))


def test_all_public_names_are_there() -> None:
    assert distir.__all__ == sorted({*distir._NAMES, "__version__"})  # pyright: ignore[reportPrivateUsage]
    assert set(distir.__all__) <= set(dir(distir))


def test_a_renamed_name_works_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distir, "_RENAMED", {"plan_for": "show"})
    says = r"distir\.plan_for is now distir\.show"
    with pytest.warns(DeprecationWarning, match=says) as caught:
        found = distir.plan_for
    assert found is distir.show
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'plan_against'"):
        _ = distir.plan_against


def test_a_record_without_git_names_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import record

    monkeypatch.setattr(record, "RECORD", tmp_path / "record.jsonl")
    assert record.commit() == f"version {distir.__version__}"


def test_a_release_without_git_says_why(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    copy = shutil.copy(ROOT / ".ci" / "release", tmp_path / ".ci")
    done = subprocess.run([copy], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("a release is built of a commit")
    assert done.stderr.count("\n") == 1 and done.stdout == ""


def test_a_section_of_the_benchmarks_holds_nothing_else() -> None:
    """A script replaces all that stands between its marks."""
    import report

    text = report.DOCUMENT.read_text("utf-8")
    found = re.findall(r"^<!-- (\w+) -->\n(.*?)^<!-- end of \1 -->", text, re.M | re.S)
    assert len(found) > 8 and {name for name, _ in found} <= set(report.sections())
    for name, section in found:
        assert len(re.findall(r"^## ", section, re.M)) <= 1, name


def test_the_record_of_numbers() -> None:
    import record
    from report import table

    rows = [["building", "1,250 s (wall)"]]
    made = table(["what", "time", "target"], [[*row, "0.1 s"] for row in rows])
    found = dict(record.numbers(f"## Speed\n\nText, 12.\n\n{made}\n\nMore."))
    assert found == {"building: time": 1250.0}
    before = record.Line("a", "2026-01-01", "m", 0.0, {"building: time": 1000.0})
    now = record.Line("b", "2026-01-02", "m", 0.0, found)
    assert record.slower(before, now) == ["building: time: 1000 -> 1250"]
    assert record.slower(now, before) == []
    busy = record.Line("c", "2026-01-03", "a processor, 2 cores", 1.5, found)
    assert busy.is_busy and not before.is_busy
    for line in record.lines():
        assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", line.commit)
        assert line.machine and line.numbers
