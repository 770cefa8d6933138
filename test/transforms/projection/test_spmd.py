"""One program for all ranks computes what the sequential program computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.programs import parse
from support.thoroughness import chosen
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import PassPipeline

from distir.dialects.collective_ops.rank_form import InRankForm
from distir.dialects.collective_ops.spmd_form import InSpmdForm
from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.passes import get_all_passes
from distir.program import entry_function, functions
from distir.text import new_context
from distir.transforms.projection import devices_of, project

TRAIN = "differentiate{loss=mse optimizer=sgd momentum=0.9}"


def mlp(batch: int) -> str:
    x, h, y = (
        f"tensor<{batch}x16xf32>",
        f"tensor<{batch}x32xf32>",
        f"tensor<{batch}x8xf32>",
    )
    return f"""
    func.func @main(
        %x: {x} {{dist.role = "input", dist.name = "x"}},
        %w: tensor<16x32xf32> {{dist.role = "parameter", dist.name = "w"}},
        %v: tensor<32x8xf32> {{dist.role = "parameter", dist.name = "v"}}
    ) -> {y} {{
      %h = onnx.MatMul(%x, %w) {{scope = "a"}} : ({x}, tensor<16x32xf32>) -> {h}
      %r = onnx.Softmax(%h) {{scope = "a"}} : ({h}) -> {h}
      %y = onnx.MatMul(%r, %v) {{scope = "b"}} : ({h}, tensor<32x8xf32>) -> {y}
      func.return %y : {y}
    }}
    """


def made(text: str, passes: str) -> ModuleOp:
    module = parse(text)
    if passes:
        PassPipeline.parse_spec(get_all_passes(), passes).apply(new_context(), module)
    module.verify()
    return module


def arguments(module: ModuleOp) -> list[Any]:
    rng = np.random.default_rng(0)
    types: Any = entry_function(module).function_type.inputs.data
    return [rng.normal(size=t.get_shape()).astype(np.float32) for t in types]


CASES = [
    ("", "d=2 t=2"),
    ("", 't=4 shard="w:0=t"'),
    (TRAIN, "d=2 t=2"),
    (TRAIN, "d=2 t=2 zero=3"),
    (TRAIN, "d=4 zero=1"),
    (TRAIN, "d=2 k=2 zero=2"),
]


@pytest.mark.parametrize(("before", "options"), chosen(CASES, [CASES[0], CASES[3]]))
def test_all_ranks_compute_what_the_sequential_program_does(
    before: str, options: str
) -> None:
    sequential = made(mlp(8), before)
    passes = f"distribute{{cluster=cpu {options}}},project{{spmd}}"
    one = made(mlp(8), ",".join(filter(None, (before, passes))))
    assert any(isinstance(op, InSpmdForm) for op in one.walk())
    given = arguments(sequential)
    for expected, found in zip(
        run_program(sequential, given), run_program(one, given), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_it_is_the_program_of_each_rank() -> None:
    """Apart from the groups, which each rank computes, it is what `project` makes."""
    distributed = made(mlp(8), f"{TRAIN},distribute{{d=2 t=2 zero=3 cluster=cpu}}")
    one = made(
        mlp(8), f"{TRAIN},distribute{{d=2 t=2 zero=3 cluster=cpu}},project{{spmd}}"
    )
    collectives = [op for op in one.walk() if isinstance(op, InSpmdForm)]
    # The groups as results, which ranks compute in their order.
    names = [op.kind for op in collectives]
    for rank in devices_of(distributed):
        own = [
            op for op in project(distributed, rank).walk() if isinstance(op, InRankForm)
        ]
        assert [op.kind for op in own] == names
        for a, b in zip(own, collectives, strict=True):
            assert a.result.type == b.result.type
            assert {
                n: p for n, p in a.properties.items() if n != "group"
            } == b.properties


def test_the_code_does_not_depend_on_the_number_of_replicas() -> None:
    two, four = (
        made(mlp(4 * d), f"distribute{{d={d} t=2 cluster=cpu}},project{{spmd}}")
        for d in (2, 4)
    )
    assert str(functions(two)["main"]) == str(functions(four)["main"])


@pytest.mark.parametrize("replicas", [2, 4])
def test_one_text_runs_on_any_number_of_replicas(replicas: int) -> None:
    """The text that was made for two; only the mesh, which is not code, is larger."""
    one = made(mlp(8), "distribute{d=2 t=2 cluster=cpu},project{spmd}")
    text = str(one).replace(
        "d = 2, t = 2> [0 to 4]", "d = REPLICAS, t = 2> [0 to RANKS]"
    )
    assert "REPLICAS" in text
    text = text.replace("REPLICAS", str(replicas)).replace("RANKS", str(2 * replicas))
    sequential = made(mlp(4 * replicas), "")
    given = arguments(sequential)
    (expected,), (found,) = (
        run_program(module, given) for module in (sequential, parse(text))
    )
    assert found.shape == (4 * replicas, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_program_that_knows_its_rank_otherwise_is_refused() -> None:
    again = made(mlp(8), "distribute{d=2 t=2 cluster=cpu},project{spmd}")
    with pytest.raises(DistIRError, match="belongs to the program of one rank already"):
        project(again, 0)
