"""Requests for the layouts of values that modules compute."""

from __future__ import annotations

import pytest
from support.schedules import assert_same_results, gpt, scheduled
from support.training_programs import distributed
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import AllGatherOp, AllReduceOp
from distir.dialects.dist import ConstrainOp, layout_of
from distir.errors import DistIRError
from distir.program import functions, return_op, scope_of, walk_functions
from distir.scheduling import Columns, Schedule


def logits(module: ModuleOp) -> str:
    """The layouts of what the head computes, and of what is returned."""
    (product,) = (
        op
        for _, op in walk_functions(module)
        if scope_of(op) == "lm_head" and op.name == "onnx.MatMul"
    )
    found = [product.results[0], return_op(functions(module)["main"]).operands[0]]
    return "; ".join(str(layout_of(value)) for value in found)


def test_an_output_is_whole_or_split_as_asked() -> None:
    module = gpt(layers=1)
    plain = distributed(module, t=2)
    assert logits(plain).startswith("<@mesh, [{}, {}, {t}]>")
    s = Schedule()
    s["lm_head"].out(0).split(1, "t")
    asked = scheduled(module, s)
    found = distributed(asked, t=2)
    assert logits(found).endswith("; <@mesh, [{}, {t}, {}]>")
    assert_same_results(module, found)
    s = Schedule()
    s["lm_head"].out(0).whole("t")
    found = distributed(scheduled(module, s), t=2)
    assert logits(found).endswith("; <@mesh>")
    assert_same_results(module, found)
    for options in ({"t": 1}, {"d": 2}):
        other = distributed(asked, **options)
        assert not any(isinstance(op, ConstrainOp) for _, op in walk_functions(other))
        assert_same_results(module, other)


def test_one_layer_of_several_that_share_a_function() -> None:
    """The hidden values behind the first layer are split along the sequence."""
    s = Schedule()
    s["transformer.h.0"].out(0).split(1, "t")
    module = gpt(layers=3)
    asked = scheduled(module, s)
    constrained = [
        f.sym_name.data
        for f, op in walk_functions(asked)
        if isinstance(op, ConstrainOp)
    ]
    assert len(constrained) == 1
    assert sum("layer" in name for name in functions(asked)) == 2
    found = distributed(asked, t=2)
    assert_same_results(module, found)
    kinds = [type(op) for _, op in walk_functions(found)]
    assert AllGatherOp in kinds and AllReduceOp in kinds


@pytest.mark.parametrize(
    ("index", "dim", "message"),
    [
        (1, 0, r"line \d+: there is no output 1 of 'lm_head', which has 1"),
        (0, 3, r"line \d+: what onnx.MatMul.* computes has no dimension 3"),
    ],
)
def test_outputs_that_there_are_not(index: int, dim: int, message: str) -> None:
    s = Schedule()
    s["lm_head"].out(index).split(dim, "t")
    with pytest.raises(DistIRError, match=message):
        scheduled(gpt(layers=1), s)


def test_an_output_is_asked_for_once() -> None:
    s = Schedule()
    s["lm_head"].out(0).split(1, "t")
    s["lm_head"].out(0).whole("t")
    with pytest.raises(DistIRError, match=r"line \d+: what axis 't' does.*line \d+\)"):
        scheduled(gpt(layers=1), s)


def test_a_dimension_that_the_axis_does_not_divide_is_refused() -> None:
    s = Schedule()
    s["lm_head"].split(Columns("t"))
    s["lm_head"].out(0).split(0, "t")
    with pytest.raises(DistIRError, match=r"as test_outputs.py, line \d+ asks"):
        distributed(scheduled(gpt(layers=1), s), t=3)
