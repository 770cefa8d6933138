"""`distir serve-plan` and `distir.serve_plan`, as users call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import distir
from distir.tools.cli import main

QUICK = ["--batched-tokens", "512", "--requests", "60", "--max-sequences", "32"]
SERVICE = [
    "--cluster",
    "dgx-h100",
    "--devices",
    "2",
    "--prompt",
    "300",
    "--generate",
    "20",
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small LLaMA."""
    path = tmp_path_factory.mktemp("serving") / "llama.mlir"
    sizes = "--layers 4 --d-model 512 --heads 4 --kv-heads 2 --vocab 1000"
    command = ["build", "llama", *sizes.split(), "--batch", "1", "--seq", "64"]
    assert main([*command, "--dtype", "bf16", "-o", str(path)]) == 0
    return path


def test_the_answer_is_a_plan_with_its_tokens(
    program: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # headings in one line
    files = [
        "--json",
        str(tmp_path / "plan.json"),
        "--html",
        str(tmp_path / "plan.html"),
    ]
    limits = ["--rate", "40/s", "--ttft", "1s", "--tpot", "20ms"]
    assert main(["serve-plan", str(program), *SERVICE, *limits, *QUICK, *files]) == 0
    shown = capsys.readouterr().out
    [plan] = [line for line in shown.splitlines() if line.startswith("plan:")]
    assert "tokens/s" in plan
    assert "needed: 40 requests/s need" in shown
    assert "TTFT p99" in shown and "interpolated; the largest error" in shown
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["best"]["within_limits"] and data["at_rate"]["rate"] == 40
    assert set(data["best"]["ttft_s"]) == {"p50", "p90", "p99"}
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<svg") == 3 and "http" not in page.replace(
        "http://www.w3.org", ""
    )
    script = tmp_path / "serve.sh"
    source = str(tmp_path / "plan.json")
    assert main(["export", source, "--to", "sglang", "-o", str(script)]) == 0
    assert "--tp-size" in script.read_text()


def test_a_trace_gives_the_same_answer_twice(program: Path, tmp_path: Path) -> None:
    trace = tmp_path / "requests.csv"
    rows = [f"{i / 20},{200 + i},{10 + i % 7}" for i in range(60)]
    trace.write_text("\n".join(["arrival_s,prompt,generate", *rows]) + "\n")
    found = [
        distir.serve_plan(
            program,
            cluster="dgx-h100",
            devices=1,
            trace=trace,
            ttft="2s",
            batched_tokens=512,
            max_sequences=32,
            placement="aggregated",
        )
        for _ in range(2)
    ]
    first, second = (each.planned.to_json() for each in found)
    assert first == second
    assert first["workload"]["longest_request"] == 259 + 10 + 59 % 7
    assert found[0].tokens_per_s > 0 and found[0].devices_needed is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SERVICE[:4], "say how long requests are"),
        ([*SERVICE, "--trace", __file__], "leave out --prompt and --generate"),
        ([*SERVICE, "--memory-share", "0"], "leaves no memory"),
    ],
)
def test_wrong_arguments_are_refused(
    program: Path,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve-plan", str(program), *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0s", "1h", "-1ms", "fast"])
def test_times_have_units(program: Path, text: str) -> None:
    with pytest.raises(SystemExit):
        main(["serve-plan", str(program), *SERVICE, "--ttft", text])


def test_requests_longer_than_the_positions_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpt.mlir"
    sizes = "--layers 2 --d-model 64 --heads 4 --vocab 100 --batch 1 --seq 128"
    assert main(["build", "gpt", *sizes.split(), "-o", str(path)]) == 0
    assert main(["serve-plan", str(path), *SERVICE]) == 1
    assert "takes 320 tokens" in capsys.readouterr().err


def test_limits_that_no_plan_keeps_are_said(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["--tpot", "1us"]
    assert main(["serve-plan", str(program), *SERVICE, *limits, *QUICK]) == 1
    assert "without other requests" in capsys.readouterr().err
