"""Sharding rules of opaque modules: their notation, their gradients, their messages."""

from __future__ import annotations

import pytest

from distir.dialects.dist import Layout, Shard
from distir.errors import DistIRError
from distir.sharding.mesh import Mesh
from distir.sharding.opaque_rule import in_brackets, parse_opaque_rule
from distir.sharding.rule import inference_of

MESH = Mesh("mesh", (("d", 2), ("e", 2)), (0, 1, 2, 3))
BATCH = Layout("mesh", ((Shard("d"), Shard("e")), ()))
EXPERTS = Layout("mesh", ((Shard("e"),), ()))
TEXT = "[b@e, 8], [4@e, 8], [8] -> [b@e, 8]"
SHAPES = [(8, 8), (4, 8), (8,)]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("b s d -> b s d", "[b, s, d] -> [b, s, d]"),
        ("b@e (h 64), 4@e 8 -> b@e, ", "[b@e, h 64], [4@e, 8] -> [b@e], []"),
        ("b s -> b keep s", "[b, s] -> [b] keep s"),
        (TEXT, TEXT),
    ],
)
def test_dimensions_are_separated_by_spaces(given: str, found: str) -> None:
    assert in_brackets(given) == found
    assert str(parse_opaque_rule(found)) == found


def test_axes_of_the_module_split_as_declared_and_others_split_factors() -> None:
    rule = parse_opaque_rule(TEXT).rule(SHAPES, [(8, 8)], "10*b")
    found = inference_of(rule, [BATCH, EXPERTS, Layout("mesh")], MESH)
    assert not isinstance(found, str) and found.results == (BATCH,)
    assert rule.flops == 80 and rule.parts_on(MESH) == 2


def test_a_tensor_in_other_parts_is_named() -> None:
    rule = parse_opaque_rule(TEXT).rule(SHAPES, [(8, 8)])
    whole = Layout("mesh")
    found = inference_of(rule, [BATCH, whole, whole], MESH)
    assert isinstance(found, str) and found.startswith("operand 1 has layout <@mesh>")
    found = inference_of(rule, [BATCH, EXPERTS, EXPERTS], MESH)
    assert isinstance(found, str) and "operand 2" in found


def test_gradients_of_whole_operands_are_sums() -> None:
    text = parse_opaque_rule(TEXT).gradient([0], [0, 1, 2])
    assert str(text).endswith("-> [b@e, 8], [4@e, 8], [8]")
    rule = text.rule([(8, 8), *SHAPES], SHAPES, is_gradient=True)
    operands = [BATCH, BATCH, EXPERTS, Layout("mesh")]
    found = inference_of(rule, operands, MESH)
    assert not isinstance(found, str)
    dx, dw, dr = found.results
    assert dx == BATCH
    assert dw.split_axes == ("e",) and dw.partial_axes == ("d",)
    assert dr.split_axes == () and dr.partial_axes == ("d", "e")


def test_an_axis_splits_one_dimension_of_a_tensor() -> None:
    with pytest.raises(DistIRError, match="axis 'e' splits two dimensions"):
        parse_opaque_rule("[b@e, s@e] -> [b, s]")
