"""A forward beside a backward: the calls that are joined, their order and their results."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.dialects.collective_ops.over_axes import RaggedAllToAllOp
from distir.dialects.dist import layout_of
from distir.frontends.models.llama import build_llama
from distir.hardware import grow, load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.distribution.overlap import overlap_communication
from distir.program import entry_function, functions, reachable_functions
from distir.sharding.verification import verify_distribution
from distir.transforms.overlap.paired_calls import pair_calls


def step(**sizes: object) -> ModuleOp:
    given = {
        "layers": 4, "d_model": 8, "heads": 2, "kv_heads": 2, "vocab": 32, "batch": 8,
        "seq": 4, "ffn": 8, "experts": 4, "top_k": 1, "tied": False, "dtype": "f32",
    }  # fmt: skip
    module = build_llama(**given | sizes)  # type: ignore[arg-type]
    DifferentiatePass(optimizer="sgd", loss="cross_entropy").apply(Context(), module)
    return module


def pipeline(module: ModuleOp, cluster: str = "cpu", **options: object) -> ModuleOp:
    module = module.clone()
    first = module.body.block.first_op
    assert first is not None
    devices = (
        grow(load_cluster(cluster), 32) if cluster != "cpu" else load_cluster(cluster)
    )
    module.body.block.insert_op_before(devices, first)
    given = {"p": 2, "e": 2, "k": 4, "token_dispatch": "all-to-all", **options}
    DistributePass(**given).apply(Context(), module)  # type: ignore[arg-type]
    return module


def calls(module: ModuleOp) -> dict[str, list[str]]:
    """The names of the functions that the entry function calls, by mesh."""
    found: dict[str, list[str]] = {}
    for op in entry_function(module).body.block.ops:
        if isinstance(op, CallOp):
            layout = layout_of(op.results[0])
            assert layout is not None
            found.setdefault(layout.mesh, []).append(op.callee.string_value())
    return found


def executed(module: ModuleOp) -> Counter[str]:
    """How often each kind of op runs."""
    known = functions(module)

    def count(name: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for op in known[name].body.block.ops:
            if isinstance(op, CallOp):
                total += count(op.callee.string_value())
            else:
                total[op.name] += 1
        del total["func.return"]
        return total

    return count(entry_function(module).sym_name.data)


@pytest.mark.parametrize(
    "schedule",
    chosen(["dualpipev", "1f1b", "zbv", "interleaved-1f1b"], quick=["dualpipev"]),
)
def test_results_stay_the_same(schedule: str) -> None:
    """Each op runs as often as before, in an order in which all calls have what they need."""
    sequential = step()
    chunks = 2 if schedule == "interleaved-1f1b" else None
    before = pipeline(sequential, schedule=schedule, chunks=chunks)
    after = before.clone()
    assert pair_calls(after)
    after.verify()
    verify_distribution(after)
    assert executed(after) == executed(before)
    arguments = random_arguments(sequential, 0)
    expected = run_program(sequential, arguments)
    for a, b, c in zip(
        expected,
        run_program(before, arguments),
        run_program(after, arguments),
        strict=True,
    ):
        np.testing.assert_array_equal(b, c)
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-6)


def test_calls_that_are_joined() -> None:
    """In a V of two ranks, forwards of one stage join backwards of the rank's other stage."""
    module = pipeline(step(), schedule="dualpipev")
    before = calls(module)
    pair_calls(module)
    for mesh, names in calls(module).items():
        joined = [name for name in names if name not in before[mesh]]
        assert len(joined) == {"stage0": 3, "stage1": 4}[mesh], names
        assert len(names) == len(before[mesh]) - len(joined)
    function = next(
        f for n, f in functions(module).items() if n == "stage1_forward_stage2_backward"
    )
    kinds = [isinstance(op, RaggedAllToAllOp) for op in function.body.block.ops]
    assert sum(kinds) == 4  # there and back, of the forward and of the backward


def test_calls_without_experts_stay_apart() -> None:
    module = step(experts=0)
    found = pipeline(module, e=1, d=2, token_dispatch="auto", schedule="dualpipev")
    text = str(found)
    assert not pair_calls(found)
    assert str(found) == text


def test_rows_travel_while_the_other_direction_computes() -> None:
    """The overlap that is chosen where links are slow: the exposed all-to-alls get fewer."""
    sizes = {"batch": 128, "d_model": 2048, "ffn": 2048, "seq": 512, "dtype": "bf16"}
    program = step(**sizes, experts=16, top_k=4)
    module = pipeline(program, "dgx-h100", k=8, e=16, schedule="dualpipev")
    before = simulate(module)
    after = overlap_communication(module, kinds=["tp"], before=before).simulation
    names = [f.sym_name.data for f in reachable_functions(module)]
    assert any("forward_stage" in name for name in names), names
    assert after.step_time_s < 0.95 * before.step_time_s
    assert after.step_time_s == pytest.approx(simulate(module).step_time_s)
