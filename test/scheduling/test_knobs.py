"""Knobs that depend on others, and what a schedule requires of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import distir, failure, succeed
from support.schedules import gpt, scheduled

from distir.dialects.dist_attributes import RECOMPUTE
from distir.errors import DistIRError
from distir.scheduling import Schedule
from distir.tools.distir_opt import main as optimize


def ratios(batch: int) -> list[float]:
    return [0.0, 0.5] if batch < 8 else [0.5, 1.0]


def not_all(ratio: float, batch: int) -> bool:
    return ratio < 1 or batch < 8


def for_small(batch: int) -> list[float]:
    return [0.5] if batch < 8 else []


def misspelt(rate: float) -> bool:
    return rate > 0


def fewer_for_large() -> Schedule:
    """Of a large batch at least half of the layers are computed again, but not all."""
    s = Schedule()
    s.knob("batch", [4, 8])
    ratio = s.knob("ratio", ratios)
    s.require(not_all)
    s["transformer.h.*"].first(ratio).recompute("full")
    return s


def test_values_of_a_knob_follow_from_those_before() -> None:
    asked = scheduled(gpt(), fewer_for_large(), "batch=4", "ratio=0")
    assert str(asked).count(f"{RECOMPUTE} =") == 0
    asked = scheduled(gpt(), fewer_for_large(), "batch=8", "ratio=0.5")
    assert str(asked).count(f"{RECOMPUTE} =") == 2


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (("batch=4", "ratio=1"), "line 37: knob 'ratio' cannot be 1 beside batch=4"),
        (("batch=8", "ratio=0"), "cannot be 0 beside batch=8; choose one of 0.5, 1.0"),
        (("batch=8", "ratio=1"), "line 38: the schedule excludes ratio=1.0, batch=8"),
        (("batch=8",), "knob 'ratio' has no value; choose one of 0.5, 1.0 with"),
    ],
)
def test_what_does_not_go_together_is_refused(
    chosen: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DistIRError) as error:
        scheduled(gpt(), fewer_for_large(), *chosen)
    assert message in str(error.value)


def test_a_combination_may_have_no_value() -> None:
    s = Schedule()
    s.knob("batch", [4, 8])
    s.knob("ratio", for_small)
    scheduled(gpt(), s, "batch=4")
    s = Schedule()
    s.knob("batch", [4, 8])
    s.knob("ratio", for_small)
    with pytest.raises(
        DistIRError, match="'ratio' has no value that goes with batch=8"
    ):
        scheduled(gpt(), s, "batch=8")


def test_a_function_takes_knobs_from_before() -> None:
    s = Schedule()
    s.knob("ratio", [1.0, 0.5])
    with pytest.raises(DistIRError, match=r"takes 'rate', but there is .* are ratio"):
        s.require(misspelt)


def test_printed_knobs_do_the_same_without_python(tmp_path: Path) -> None:
    model, script, printed = (tmp_path / n for n in ("m.mlir", "s.py", "p.mlir"))
    model.write_text(str(gpt()))
    script.write_text(
        "def schedule(s):\n"
        "    s.knob('many', [1, 2])\n"
        "    count = s.knob('count', lambda many: range(many))\n"
        "    s.require(lambda count, many: count + many != 2)\n"
        "    s['transformer.h.*'].first(count).recompute('full')\n"
    )
    printed.write_text(succeed("schedule", model, script, "--print").output)
    for chosen, marked in (("many=2 count=1", 1), ("many=1", 0)):
        sets = [word for each in chosen.split() for word in ("--set", each)]
        succeed("schedule", model, script, *sets, "-o", tmp_path / "asked.mlir")
        values = ",".join(f'"{each}"' for each in chosen.split())
        applied = distir(
            printed, "-p", f"apply-schedule{{set={values}}}", command=optimize
        )
        assert applied.code == 0, applied.errors
        assert applied.output.count(f"{RECOMPUTE} =") == marked
        asked = distir(tmp_path / "asked.mlir", command=optimize)
        assert asked.output == applied.output
    message = failure("schedule", model, script, "--set", "many=2", "-o", printed)
    assert "s.py, line 3: knob 'count' has no value; choose one of 0, 1" in message
