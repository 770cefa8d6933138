"""Sharding rules as text: what the words and clauses of the notation make."""

from __future__ import annotations

import pytest
from support import sharding_cases, train_cases
from support.cases import named
from support.sharding_harness import sequential
from xdsl.dialects.builtin import TensorType, f32
from xdsl.dialects.test import TestOp
from xdsl.utils.test_value import create_ssa_value

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.traits import FACTORS
from distir.dialects.op_facts import OpFacts
from distir.dialects.tensors import shape_of
from distir.dialects.train import Train
from distir.dialects.train_ops.normalization import LayerNormOp
from distir.errors import DistIRError
from distir.sharding.factor_text import (
    UnfitShapesError,
    parsed,
    rule_for_shapes,
    rule_from,
)
from distir.sharding.rule import Factor, Linear, Rule


def tensors(*shapes):
    return [TensorType(f32, shape) for shape in shapes]


def rule_of(text, operands, results) -> Rule:
    groups = (tuple((s,) for s in operands), tuple((s,) for s in results))
    return rule_for_shapes(text, *groups, (("at", 1), ("groups", 2)))


def test_results_say_which_factors_are_parallel():
    text = "[b, m, k], [k, n] -> [b, m, n] linear 0, 1 flops 2*b*m*k*n"
    rule = rule_of(text, [(2, 3, 4), (4, 5)], [(2, 3, 5)])
    assert rule.factors == (Factor(2), Factor(3), Factor(4, "reduction"), Factor(5))
    assert rule.operands == (((0,), (1,), (2,)), ((2,), (3,)))
    assert rule.results == (((0,), (1,), (3,)),)
    assert rule.linear == (Linear(frozenset({0})), Linear(frozenset({1})))
    assert rule.flops == 2 * 2 * 3 * 4 * 5


def test_dimensions_of_size_1_have_no_factors():
    rule = rule_of("[a, b] -> [a, b]", [(1, 4)], [(1, 4)])
    assert rule.factors == (Factor(4),)
    assert rule.operands == (((), (0,)),)


def test_runs_are_as_long_as_ranks_say():
    rule = rule_of(
        "[n, *s, c], [c] -> [n, *s, c] keep s", [(2, 3, 4, 5), (5,)], [(2, 3, 4, 5)]
    )
    kinds = [factor.kind for factor in rule.factors]
    assert kinds == ["parallel", "replicate", "replicate", "parallel"]
    assert rule.operands[1] == ((3,),)


def test_an_attribute_gives_the_length_of_a_run():
    rule = rule_of("[*a@at, k, *b] -> [*a, k, *b] keep k", [(2, 3, 4)], [(2, 3, 4)])
    assert [factor.kind for factor in rule.factors] == [
        "parallel",
        "replicate",
        "parallel",
    ]


def test_an_attribute_gives_the_size_of_a_factor():
    rule = rule_of("[g@groups m] -> [g m] keep m", [(6,)], [(6,)])
    assert rule.factors == (Factor(2), Factor(3, "replicate"))
    assert rule.operands == (((0, 1),),)


def test_unnamed_dimensions_have_any_size_and_no_factor():
    rule = rule_of(
        "[n, ?], [?, n, *?] -> [n, ?t] flops n*t", [(2, 3), (4, 2, 5, 6)], [(2, 7)]
    )
    assert rule.factors == (Factor(2),)
    assert rule.operands == (((0,), ()), ((), (0,), (), ()))
    assert rule.flops == 14


def test_results_that_lack_a_parallel_factor_are_sums_over_it():
    rule = rule_of("[n, c] -> [n, c], [c]", [(2, 3)], [(2, 3), (3,)])
    assert rule.partial_results == {0: frozenset({1})}


def test_clauses_name_kinds_decomposed_factors_and_reductions():
    rule = rule_of("[n, v] -> [n] max v decompose n linear any 0", [(2, 3)], [(2,)])
    assert rule.factors[1] == Factor(3, "reduction", "max")
    assert rule.decomposed == {0}
    (linear,) = rule.linear
    assert linear.reductions == {"sum", "max", "min"}


def test_partial_operands_may_pass_together():
    rule = rule_of("[n], [n], [n] -> [n] linear 0+2", [(2,)] * 3, [(2,)])
    assert rule.linear == (Linear(frozenset({0, 2})),)


def test_a_factor_of_a_few_operands_of_a_definition():
    x, scale, bias = TestOp(result_types=tensors((2, 3), (3,), (3,))).results
    text = rule_from(
        "[*r@dimension, *c], [*c], [*c] -> [*r, *c], [*r, *?], [*r, *?] keep c"
    )
    for given in ([x, scale], [x, scale, bias]):
        rule = text(LayerNormOp(*given, axis=-1, epsilon=1e-5))
        assert len(rule.operands) == len(given)
        assert rule.results == (((0,), (1,)), ((0,), ()), ((0,), ()))


def test_an_op_on_unknown_sizes_is_replicated():
    (value,) = TestOp(result_types=tensors((-1, 2))).results
    made = operator("Relu").build_op([value], tensors((-1, 2)))
    assert rule_from("[a, b] -> [a, b]")(made) == Rule.replicated(made)


def test_an_op_of_shapes_that_a_text_does_not_fit_is_replicated():
    (value,) = TestOp(result_types=tensors(())).results
    made = operator("Softmax").build_op([value], tensors(()))
    assert rule_from(FACTORS["onnx.Softmax"])(made) == Rule.replicated(made)


def test_texts_fit_the_cases_of_their_ops():
    for case in (*sharding_cases.CASES, *train_cases.CASES):
        op = sequential(case).op
        text = op.FACTORS if isinstance(op, OpFacts) else FACTORS.get(op.name)
        if text and 0 not in (n for v in op.operands for n in shape_of(v)):
            with named(case):
                assert rule_from(text)(op) != Rule.replicated(op) or not any(
                    n > 1 for v in op.results for n in shape_of(v)
                )


@pytest.mark.parametrize("text", ["[a] [b]", "[a], b -> [a]", "[a] -> [a] -> [a]"])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ValueError, match="cannot read the factors"):
        parsed(text)


def test_lengths_that_do_not_follow_are_refused():
    with pytest.raises(UnfitShapesError, match="do not follow"):
        rule_of("[*a, *b] -> [*a, *b]", [(2, 3)], [(2, 3)])


def test_names_in_clauses_are_factors():
    texts = [op.FACTORS for op in Train.operations if issubclass(op, OpFacts)]
    for text in filter(None, [*texts, *FACTORS.values()]):
        found = parsed(text)
        words = {
            word.partition("@")[0].lstrip("*")
            for dims in (*found.operands, *found.results)
            for dim in dims
            for word in dim
        }
        for clause in ("keep", "max", "min", "decompose"):
            assert found.names(clause) <= words, text
        operands = frozenset(range(len(found.operands)))
        assert all(group <= operands for group, _ in found.linear())


@pytest.mark.parametrize(
    ("plain", "bracketed"),
    [
        ("m k, k n -> m n linear 0, 1", "[m, k], [k, n] -> [m, n] linear 0, 1"),
        ("b (g h) -> b g h", "[b, g h] -> [b, g, h]"),
        ("*a@axis k *b, ? -> *a ? *b", "[*a@axis, k, *b], [?] -> [*a, ?, *b]"),
        (" -> i j", "-> [i, j]"),
        ("i j, -> i", "[i, j], [] -> [i]"),
        ("i -> ", "[i] -> []"),
    ],
)
def test_dimensions_may_be_written_without_brackets(plain: str, bracketed: str):
    assert parsed(plain) == parsed(bracketed)


def test_a_list_of_operands_has_one_text_or_one_for_each():
    op = TestOp(
        [create_ssa_value(t) for t in tensors((4, 8), (8, 2))],
        result_types=tensors((4, 2)),
    )
    assert rule_from("m k, k n -> m n")(op) == rule_of(
        "m k, k n -> m n", [(4, 8), (8, 2)], [(4, 2)]
    )
    same = TestOp([create_ssa_value(t) for t in tensors((4, 8), (4, 8))])
    assert rule_from("m n -> ")(same).operands == (((0,), (1,)),) * 2


def test_attributes_that_an_op_lacks_are_named():
    op = TestOp([create_ssa_value(t) for t in tensors((4, 8))])
    with pytest.raises(DistIRError, match="needs the integer attribute 'axis'"):
        rule_from("*a@axis n -> ")(op)
