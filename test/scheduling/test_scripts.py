"""Scripts in Python: what they record, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import distir, failure, succeed
from support.schedules import assert_same_results, gpt, scheduled, splits
from support.thoroughness import each_once, sampled
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist_attributes import EXPECTED, RECOMPUTE
from distir.errors import DistIRError
from distir.frontends.models.basic import build_mlp
from distir.passes.apply_schedule import ApplySchedulePass
from distir.passes.differentiate import DifferentiatePass
from distir.program import functions
from distir.scheduling import Columns, Rows, Schedule
from distir.scheduling.run import apply_schedule
from distir.scheduling.script import add_schedules, read_script
from distir.tools.distir_opt import main as optimize

LIBRARY = Path(__file__).parents[2] / "distir/scheduling/library"


def test_each_line_of_a_script_is_an_op_that_names_it() -> None:
    s = Schedule()
    s["h.*"].match("mlp.up", count=2).split(Columns("t")).split(Rows("d")).stage()
    s["wte"].param("weight").split(0, "t", run=4).whole("d")
    s["h.*"].first(3).recompute(s.knob("policy", ["full", "none"]))
    text = str(s.recorded())
    for part in (
        'schedule.match "mlp.up" in %0 {count = 2 : i64, schedule.by = "test_scripts.py, line',
        'split_linear %1 {by = "columns", axis = "t"',
        'split_linear %1 {by = "rows", axis = "d"',
        "schedule.stage %1 ",
        'schedule.parameters "weight" of %2',
        'schedule.shard %3 {dim = 0 : i64, axis = "t", run = 4 : i64',
        'schedule.whole %3 {axis = "d"',
        "{amount = 3 : i64",
        'knob "policy" {values = ["full", "none"]',
        "by %policy",
        "transform.yield",
    ):
        assert part in text
    lines = {t.split('"')[0] for t in text.split("test_scripts.py, line ")[1:]}
    assert len(lines) == 3


def test_the_plan_of_a_block_is_megatrons() -> None:
    s = Schedule()
    s["transformer.h.*"].plan(
        {"attn.c_proj": Rows("t"), "mlp.c_fc": Columns("t"), "mlp.c_proj": Rows("t")}
    )
    s["transformer.wte"].param("weight").split(0, "t")
    s["transformer.h.3.mlp"].param("c_fc.bias").split(0, "t")
    module = gpt()
    asked = scheduled(module, s)
    found = distributed(asked, t=2)
    names = splits(found)
    for layer in range(4):
        start = f"transformer.h.{layer}"
        assert names[f"{start}.attn.c_attn.weight"] == ", [{}, {t:8}]"
        assert names[f"{start}.attn.c_proj.weight"] == ", [{t}, {}]"
        assert names[f"{start}.attn.c_proj.bias"] == ""
        assert names[f"{start}.mlp.c_fc.weight"] == ", [{}, {t}]"
        assert names[f"{start}.mlp.c_fc.bias"] == ", [{t}]"
        assert names[f"{start}.mlp.c_proj.weight"] == ", [{t}, {}]"
    assert names["transformer.wte.weight"] == ", [{t}, {}]"
    assert_same_results(module, found)


def test_an_unusual_request_goes_before_what_would_be_chosen() -> None:
    s = Schedule()
    s["transformer.h.*"].plan({"mlp.c_fc": Rows("t"), "mlp.c_proj": Columns("t")})
    s["transformer.h.0.attn"].param().whole("t")
    module = gpt(layers=2)
    asked = scheduled(module, s)
    found = distributed(asked, t=2)
    names = splits(found)
    assert names["transformer.h.1.mlp.c_fc.weight"] == ", [{t}, {}]"
    assert names["transformer.h.1.mlp.c_proj.weight"] == ", [{}, {t}]"
    assert names["transformer.h.0.attn.c_attn.weight"] == ""
    assert names["transformer.h.1.attn.c_attn.weight"] != ""
    assert_same_results(module, found)
    # A device alone has nothing to split.
    assert_same_results(module, distributed(asked, d=2))


@pytest.mark.parametrize(
    "options", sampled([{"t": 2}, {"d": 2, "t": 2, "zero": 3}, {"t": 4}], 3)
)
def test_the_library_trains_as_without_it(options: dict[str, int]) -> None:
    module = gpt()
    add_schedules(module, read_script(LIBRARY / "gpt2.py"))
    asked = module.clone()
    ApplySchedulePass(set=("ratio=0.5",)).apply(Context(), asked)
    ApplySchedulePass(set=("ratio=0.0",)).apply(Context(), module)
    assert str(asked).count(f"{RECOMPUTE} =") == 2
    assert RECOMPUTE not in str(module)
    step = gpt()
    for sequential in (step, asked):
        DifferentiatePass(optimizer="sgd", learning_rate=1.0).apply(
            Context(), sequential
        )
    found = distributed(asked, **options)
    assert splits(found)["transformer.wte.weight"].startswith(", [{")
    assert sum("_recompute" in name for name in functions(found)) == 1
    assert_same_results(step, found)


def test_zero_splits_what_stays_whole_over_another_axis() -> None:
    s = Schedule()
    s["layers.*"].param("weight").whole("t")
    module = build_mlp(2, 8, 8)
    asked = scheduled(module, s)
    DifferentiatePass(loss="mse", optimizer="adam").apply(Context(), asked)
    found = splits(distributed(asked, d=2, t=2, zero=3))
    assert found["layers.0.weight"] == ", [{d}, {}]"


def expecting(count: int, **plan: Columns | Rows) -> ModuleOp:
    """A GPT whose layers are to have so many all-reduces over t, with its MLPs split so."""
    s = Schedule()
    layers = s["transformer.h.*"]
    layers.plan({f"mlp.{name}": how for name, how in plan.items()})
    layers.expect("t", all_reduce=count)
    return scheduled(gpt(layers=2), s)


MEGATRON = {"c_fc": Columns("t"), "c_proj": Rows("t")}


def test_expected_communication_is_there() -> None:
    asked = expecting(2, **MEGATRON)
    module = distributed(asked, t=2)
    assert EXPECTED in asked.attributes and EXPECTED not in module.attributes
    # One device has none to expect.
    DifferentiatePass(optimizer="sgd").apply(Context(), asked)
    distributed(asked, d=2)


@pytest.mark.parametrize(
    ("backward", "options"),
    each_once(
        [True, False],
        [
            {"d": 2, "t": 2},
            {"p": 2, "t": 2, "k": 4},
            {"p": 2, "t": 2, "k": 4, "schedule": "zb-h1"},
            {"t": 2, "k": 2, "zero": 0},
            {"p": 2, "k": 2, "stage_meshes": ("t=2", "d=2")},
        ],
    ),
)
def test_expectations_hold_for_each_micro_batch(
    backward: bool, options: dict[str, object]
) -> None:
    for count in (2, 3):
        s = Schedule()
        layers = s["transformer.h.*"]
        layers.plan({f"mlp.{name}": how for name, how in MEGATRON.items()})
        layers.expect("t", backward=backward, all_reduce=count)
        asked = scheduled(gpt(layers=2), s)
        DifferentiatePass(optimizer="sgd").apply(Context(), asked)
        if count == 2:
            distributed(asked, **options)
            continue
        part = "backward" if backward else "forward"
        message = (
            rf"the {part} of transformer.h.0 has 2 all_reduce over 't', expected 3"
        )
        with pytest.raises(DistIRError, match=message):
            distributed(asked, **options)


def test_unexpected_communication_is_refused_with_its_cause() -> None:
    message = (
        r"test_scripts.py, line \d+: the forward of transformer.h.0 has 2 all_reduce over "
        r"'t', expected 3 all_reduce: after onnx.MatMul .*\(in transformer.h.\*.attn.c_proj\)"
    )
    with pytest.raises(DistIRError, match=message):
        distributed(expecting(3, **MEGATRON), t=2)
    # Columns behind rows must be brought together, which Megatron's never are.
    s = Schedule()
    layers = s["transformer.h.*"]
    layers.plan({"mlp.c_fc": Rows("t"), "mlp.c_proj": Columns("t")})
    layers.expect("t", all_gather=0)
    with pytest.raises(DistIRError, match="2 all_reduce over 't', expected no comm"):
        distributed(scheduled(gpt(layers=2), s), t=2)
    s = Schedule()
    s["lm_head"].expect("t", all_reduced=2)
    with pytest.raises(DistIRError, match="there is no collective 'all_reduced'"):
        scheduled(gpt(layers=1), s)


def test_stages_are_asked_for_in_order() -> None:
    s = Schedule()
    s["transformer.h.3"].stage()
    s["transformer.h.1"].stage()
    with pytest.raises(
        DistIRError,
        match=r"test_scripts.py, line \d+: the stages are out of order: func.call \(in "
        r"transformer.h.1\) comes before func.call \(in transformer.h.3\), with which a "
        r"stage begins \(test_scripts.py, line \d+\)",
    ):
        scheduled(gpt(layers=4), s)


SCRIPT = """
def schedule(s):
    layers = s["transformer.h.*"]
    layers.first(s.knob("ratio", [1.0, 0.5])).recompute("full")
    s["transformer.h.1"].stage()
"""


def test_the_printed_schedule_does_the_same_without_python(tmp_path: Path) -> None:
    model, script, out = (tmp_path / n for n in ("m.mlir", "s.py", "out.mlir"))
    model.write_text(str(gpt(layers=2)))
    script.write_text(SCRIPT)
    command = ("schedule", model, script, "--set", "ratio=0.5")
    printed = tmp_path / "printed.mlir"
    printed.write_text(succeed(*command, "-o", out, "--print").output)
    again = tmp_path / "again.mlir"
    again.write_text(
        printed.read_text()[printed.read_text().index("  transform.") :][:-2]
    )
    applied = distir(printed, "-p", 'apply-schedule{set="ratio=0.5"}', command=optimize)
    assert 'dist.stage_start = "s.py, line 5"' in applied.output
    assert applied.output == distir(out, command=optimize).output
    succeed("schedule", model, again, "--set", "ratio=0.5", "-o", again)
    assert applied.output == distir(again, command=optimize).output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def schedule(s):\n    s['h.*']\n", r"s.py, line 2: no module matches 'h.\*'"),
        ("def schedule(s):\n    1 / 0\n", "s.py, line 2: .*ZeroDivisionError"),
        ("def schedule(s):\n  s[\n", "s.py, line 2: .*SyntaxError"),
        ("import sys\nsys.exit()\n", "s.py, line 2: .*SystemExit"),
        ("def schedule(s):\n  raise SystemExit(0)\n", "s.py, line 2: .*SystemExit"),
        (
            "def schedule(s):\n  s['h.0'].cast(s)\n",
            "s.py, line 2: .* not of type Sched",
        ),
        (
            "def schedule(s):\n  s.match('h', count='1')\n",
            "s.py, line 2: .* an integer",
        ),
        ("schedule = 3\n", "s.py has no function `schedule`"),
    ],
)
def test_what_is_wrong_with_a_script_is_said_with_its_line(
    text: str, message: str, tmp_path: Path
) -> None:
    script = tmp_path / "s.py"
    script.write_text(text)
    module = gpt(layers=1)
    with pytest.raises(DistIRError, match=message):
        add_schedules(module, read_script(script))
        apply_schedule(module, "schedule")


def test_files_that_are_no_scripts(tmp_path: Path) -> None:
    for name, message in (
        ("s.txt", "a schedule is a .py or an .mlir file"),
        ("s.mlir", "holds no schedule"),
    ):
        path = tmp_path / name
        path.write_text("func.func private @f()")
        with pytest.raises(DistIRError, match=message):
            read_script(path)
    (tmp_path / "s.mlir").write_bytes(b"\xff\xfe")
    with pytest.raises(DistIRError, match="is not UTF-8 text"):
        read_script(tmp_path / "s.mlir")
    (tmp_path / "s.mlir").write_text("func.func private @f()")
    model = tmp_path / "m.mlir"
    model.write_text(str(build_mlp(2, 8, 8)))
    command = ("schedule", model)
    assert "No such file" in failure(*command, tmp_path / "no.py", "--print")
    assert "say with -o" in failure(*command, tmp_path / "s.mlir")
