"""The published runs that a simulation is compared with."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp

import distir
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.reports import compared_runs as reports
from distir.interpreters.simulator.reports.compared_runs import (
    KINDS,
    RECORD,
    ComparedRuns,
    accuracy_note,
    parallelism_of,
    record,
    uses_float8,
)
from distir.program import arguments_of, entry_function


@cache
def step(kind: str = "gpt", **options: Any) -> distir.ModelProgram:
    sizes: dict[str, Any] = dict(layers=2, d_model=32, heads=4, vocab=64)
    return distir.build(kind, batch=16, seq=32, training=True, **sizes, **dict(options))


def distributed(program: distir.ModelProgram, **options: Any) -> ModuleOp:
    return distir.distribute(program, cluster="dgx-h100", **options).module


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (dict(d=2), ("data",)),
        (dict(d=2, zero=1), ("ZeRO 1",)),
        (dict(d=2, zero=3), ("ZeRO 3",)),
        (dict(r=2, d=2, zero=3), ("data", "ZeRO 3")),
        (dict(t=2), ("tensor",)),
        (dict(d=2, c=2), ("data", "context")),
        (dict(p=2, k=4), ("pipeline",)),
        (dict(d=2, t=2, p=2, k=4, zero=1), ("ZeRO 1", "tensor", "pipeline")),
        (dict(d=2, p=2, k=4, zero=3), ("ZeRO 3", "pipeline")),
    ],
)
def test_kinds_follow_from_layouts(options: dict[str, Any], kinds: tuple[str, ...]):
    module = distributed(step(), **options)
    assert parallelism_of(entry_function(module)) == kinds
    assert not uses_float8(entry_function(module))


@pytest.mark.parametrize(("zero", "kind"), [(1, "ZeRO 1"), (3, "ZeRO 3")])
def test_overlap_changes_no_kind(zero: int, kind: str):
    """
    With overlap stage 1 leaves parameters in parts after an update, and gathers them once,
    in the next forward.
    """
    program = distir.build(
        "gpt",
        **dict(layers=2, d_model=512, heads=8, vocab=512),
        **dict(batch=16, seq=128, training=True),
    )
    entry = entry_function(
        distributed(program, devices=16, d=16, zero=zero, overlap=True)
    )
    parameters = [a for a in arguments_of(entry) if a.role == "parameter"]
    assert any(dim for a in parameters if a.layout for dim in a.layout.dims)
    assert parallelism_of(entry) == (kind,)


def test_experts_and_8_bit_floats():
    module = distributed(step("moe", experts=4), e=2)
    assert parallelism_of(entry_function(module)) == ("expert",)
    float8 = step(dtype="bf16", float8="tensor")
    assert uses_float8(entry_function(distributed(float8, d=2)))
    assert parallelism_of(entry_function(step().module)) == ()


def test_a_simulation_says_what_it_was_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    known = ComparedRuns(
        "H100", ("ZeRO 3",), False, 12, 0.058, 0.11, ("IBM's fms-fsdp",)
    )
    path = tmp_path / "runs.json"
    path.write_text(record([known]))
    monkeypatch.setattr(reports, "RECORD", path)
    monkeypatch.setattr(
        reports, "compared_runs", cache(reports.compared_runs.__wrapped__)
    )
    sharded = distributed(step(), d=2, zero=3)
    said = accuracy_note(simulate(sharded, profiles=("auto",)))
    assert said == (
        "compared: 12 published runs with ZeRO 3 parallelism on H100 (IBM's fms-fsdp): "
        "predicted step times were 5.8 % off in the mean, 11.0 % at most"
    )
    tensor = distributed(step(), t=2)
    said = accuracy_note(simulate(tensor, profiles=("auto",)))
    assert said.startswith("no published run with tensor parallelism on H100")
    # data sheets are compared with no run
    assert accuracy_note(simulate(sharded)) == ""
    forward = distir.build(
        "gpt", layers=1, d_model=32, heads=4, vocab=64, batch=2, seq=8
    )
    module = distributed(forward, d=2)
    assert accuracy_note(simulate(module, profiles=("auto",))) == ""


def test_the_record():
    entries = reports.compared_runs()
    assert record(entries) == RECORD.read_text("utf-8")
    assert json.loads(RECORD.read_text("utf-8"))
    assert all(set(entry.parallelism) <= set(KINDS) for entry in entries)
    assert all(0 < entry.mean <= entry.largest for entry in entries)
    keys = [(e.hardware, e.parallelism, e.float8) for e in entries]
    assert len(set(keys)) == len(keys)
