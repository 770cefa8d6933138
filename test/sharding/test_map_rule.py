"""Rules from indexing maps are those that the same dimensions have as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from xdsl.dialects.builtin import TensorType, f32
from xdsl.dialects.test import TestOp
from xdsl.ir import Operation
from xdsl.ir.affine import AffineMap
from xdsl.utils.test_value import create_ssa_value

from distir.errors import DistIRError
from distir.rules import rule_from_maps, rule_from_text

Shape = tuple[int, ...]
Maps = tuple[Callable[..., Any], ...]


def op_of(operands: list[Shape], results: list[Shape]) -> Operation:
    values = [create_ssa_value(TensorType(f32, shape)) for shape in operands]
    return TestOp(values, [TensorType(f32, shape) for shape in results])


PRODUCT = op_of([(4, 8), (8, 2)], [(4, 2)])
MAPS = (lambda m, k, n: (m, k), lambda m, k, n: (k, n), lambda m, k, n: (m, n))


@pytest.mark.parametrize(
    ("op", "maps", "options", "text"),
    [
        (
            PRODUCT,
            MAPS,
            {"linear": [{0}, {1}], "flops": 2},
            "m k, k n -> m n linear 0, 1 flops 2*m*k*n",
        ),
        (PRODUCT, MAPS, {"reductions": "max"}, "m k, k n -> m n max k"),
        (PRODUCT, MAPS, {"reductions": {1: "min"}}, "m k, k n -> m n min k"),
        (PRODUCT, MAPS, {"keep": [0]}, "m k, k n -> m n keep m"),
        # The windows of a pooling; a result that is a sum over rows.
        (
            op_of([(4, 9)], [(4, 7)]),
            (lambda c, i, j: (c, i + j), lambda c, i, j: (c, i)),
            {"keep": [2]},
            "c ? -> c i keep i",
        ),
        (
            op_of([(4, 8)], [(4, 8), (8,)]),
            (lambda m, n: (m, n), lambda m, n: (m, n), lambda m, n: (n,)),
            {},
            "m n -> m n, n",
        ),
        (
            op_of([(4, -1)], [(4, -1)]),
            (lambda m, n: (m, n), lambda m, n: (m, n)),
            {},
            "m n -> m n",
        ),
    ],
)
def test_rules_from_maps(
    op: Operation, maps: Maps, options: Mapping[str, Any], text: str
) -> None:
    built = rule_from_maps(
        lambda op: list(map(AffineMap.from_callable, maps)), **options
    )
    found, expected = built(op), rule_from_text(text)(op)
    assert found.operands == expected.operands and found.results == expected.results
    for f, factor in enumerate(expected.factors):
        assert found.factors[f] == factor
    assert all(f.size == 1 for f in found.factors[len(expected.factors) :])
    assert found.linear == expected.linear and found.flops == expected.flops
    assert found.partial_results == expected.partial_results


def test_maps_must_fit_the_op() -> None:
    maps = [AffineMap.from_callable(f) for f in MAPS]
    for wrong in (maps[:2], [*maps[:2], AffineMap.from_callable(lambda m: (m, m))]):
        with pytest.raises(DistIRError, match=r"test.op has \d indexing maps"):
            rule_from_maps(lambda op, wrong=wrong: wrong)(PRODUCT)
    with pytest.raises(DistIRError, match="there is no reduction 'product'"):
        rule_from_maps(lambda op: maps, reductions="product")
