"""What plans for several sizes of the batch share: layouts between two others, and stages."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from support.thoroughness import IS_THOROUGH, chosen, sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.passes.differentiate import DifferentiatePass
from distir.planning.distribution import choose_layouts
from distir.planning.grid import Evaluator, GridPlan, Space, run
from distir.planning.grid.between import Between, Sizes
from distir.planning.programs import replace_cluster
from distir.text import ProgramParser, new_context
from distir.transforms.partitioning import partition

BATCHES = (32, 64, 256)

Source = Callable[[int], ModuleOp]


def _gpt(batch: int) -> ModuleOp:
    module = build_gpt(4, 16, 4, 32, batch, 8)
    replace_cluster(module, load_cluster("dgx2", 8))
    return module


def _mlp(batch: int) -> ModuleOp:
    """Its gradient holds the size of the batch as a number."""
    module = build_mlp(layers=4, d_model=16, batch=batch)
    DifferentiatePass(loss="mse").apply(Context(), module)
    replace_cluster(module, load_cluster("dgx2", 8))
    return module


def _between(*programs: ModuleOp) -> Between:
    low, own, high = map(Sizes, programs, BATCHES)
    return Between(low, own, high)


def _distributed(module: ModuleOp, plan: GridPlan) -> ModuleOp:
    module = module.clone()
    choose_layouts(module, plan.options())
    partition(module)
    return module


@pytest.mark.parametrize(
    ("source", "degrees"),
    chosen(
        product([_gpt, _mlp], [(2, 1, 1, 1), (1, 2, 2, 2), (2, 2, 2, 2)]),
        [(_gpt, (2, 1, 1, 1)), (_mlp, (1, 2, 2, 2))],
    ),
)
def test_layouts_between_two_others_are_those_that_are_chosen(
    source: Source, degrees: tuple[int, int, int, int]
) -> None:
    d, t, p, k = degrees
    programs = [source(batch) for batch in BATCHES]
    between = _between(*programs)
    assert between.holds
    low, own, high = [
        _distributed(module, GridPlan(batch, d=d, t=t, p=p, k=k))
        for module, batch in zip(programs, BATCHES, strict=True)
    ]
    found = between.program(low, high)
    assert found is not None
    found.verify()
    assert _ops(found) == _ops(own)


def _ops(module: ModuleOp) -> str:
    """A program without its notes."""
    return str(ModuleOp([op.clone() for op in module.body.block.ops]))


def test_other_layouts_at_the_ends() -> None:
    programs = [_gpt(batch) for batch in BATCHES]
    low = _distributed(programs[0], GridPlan(32, d=2, t=2))
    high = _distributed(programs[2], GridPlan(256, d=4, t=2))
    assert _between(*programs).program(low, high) is None


def test_a_program_that_is_not_as_those_around_it() -> None:
    low, own, high = map(_gpt, BATCHES)
    other = build_gpt(4, 16, 4, 32, 64, 4)
    replace_cluster(other, load_cluster("dgx2", 8))
    fewer = build_gpt(3, 16, 4, 32, 64, 8)
    replace_cluster(fewer, load_cluster("dgx2", 8))
    assert _between(low, own, high).holds
    assert not _between(low, other, high).holds
    assert not _between(low, fewer, high).holds
    assert not _between(low, _gpt(128), high).holds  # not of the size that it is for


def test_work_that_grows_with_the_square_of_the_batch() -> None:
    """Every sample beside every other."""

    def similarity(batch: int) -> ModuleOp:
        text = f"""
            func.func @main(%x: tensor<{batch}x8xf32>, %y: tensor<8x{batch}xf32>)
                -> tensor<{batch}x{batch}xf32> {{
              %z = onnx.MatMul(%x, %y) :
                (tensor<{batch}x8xf32>, tensor<8x{batch}xf32>) -> tensor<{batch}x{batch}xf32>
              func.return %z : tensor<{batch}x{batch}xf32>
            }}"""
        return ProgramParser(new_context(), text).parse_module()

    assert not _between(*map(similarity, BATCHES)).holds


@pytest.mark.parametrize("source", sampled([_gpt, _mlp], 2))
def test_stages_of_several_batches_are_those_of_each(source: Source) -> None:
    """Twice the batch in twice as many micro-batches is the same stages, compiled once."""
    together = Evaluator(source)
    plans = [
        GridPlan(batch, d=2, t=2, p=2, k=k)
        for batch, k in ((16, 2), (64, 8), (32, 4), (32, 2))
    ]
    sizes: list[int] = []
    for plan in plans:
        assert together.evaluate(plan) == Evaluator(source).evaluate(plan)
        (stages,) = together.shared_stages
        sizes.append(len(stages.functions))
    # A training step holds the size of its batch as a number.
    assert source is not _gpt or sizes[0] == sizes[2] < sizes[3]


def test_every_plan_is_evaluated_once() -> None:
    devices = 4 if IS_THOROUGH else 2
    space = Space((16, 32, 64, 128), False, devices, micro_batches=(2, 4))
    plans = space.plans()
    found = [result for some in run(_gpt, plans, jobs=1) for result in some]
    assert sorted(result.plan for result in found) == sorted(plans)
    for result in found[::7]:
        assert result == Evaluator(_gpt).evaluate(result.plan)
