"""`distir search --auto`: what a user sees, and the program that it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.command_line import failure, succeed, write_program

TWO = ("--cluster", "dgx2", "--world-size", "2", "--jobs", "1")


def test_the_best_of_all_searches(tmp_path: Path) -> None:
    model, best, out = (tmp_path / name for name in ("m.mlir", "b.mlir", "out.json"))
    write_program(model)
    command = ("search", model, "--auto", *TWO, "--explain")
    done = succeed(*command, "--json", out, "-o", best)
    data = json.loads(out.read_text())
    assert data["finished"] is True
    assert {o["axes"] for o in data["outcomes"]} == {"", "d=2"}
    assert " fastest" in done.output and "runner-up:" in done.output
    assert "chosen layouts" in done.output
    assert "plans are to be judged first" in done.errors
    assert re.search(r"this takes (\d+ to|up to) \d+ seconds? on this", done.errors)
    assert "round 1, " in done.errors and "auto-parallel chose" in done.errors
    simulated = tmp_path / "simulated.json"
    succeed("simulate", best, "--json", simulated)
    seconds = json.loads(simulated.read_text())["step_time_s"]
    assert seconds == data["best"][0]["step_time_s"]
    succeed("check", model, best)


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    model = write_program(tmp_path / "m.mlir")
    for options in (("--explain",), ("--time-limit", "1"), ("--whole", "x")):
        message = failure("search", model, *TWO, *options)
        assert message.startswith(f"error: {options[0]} is of the search with --auto")
    message = failure("search", model, "--auto", *TWO, "--resume", tmp_path / "j")
    assert "--resume is of the grid search" in message
