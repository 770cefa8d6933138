"""`detect_nan` names the module in which NaN appears first."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from support.parallel_nan import steps_with_nan
from support.ranks import run_ranks
from support.thoroughness import sampled

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(p=2, k=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(d=2, checkpoint="full"),
    dict(d=2, compiled=True),
]


@pytest.mark.parametrize("options", sampled(PLANS, len(PLANS)), ids=str)
def test_the_module_is_named(options: dict[str, Any]) -> None:
    size = prod(options.get(axis, 1) for axis in "dtp")
    for plain, layer, given in run_ranks(size, steps_with_nan, options):
        assert plain == "no error"
        assert "appears first in module 'layers.2'" in layer, layer
        assert "sqrt" in layer and "program.py" in layer
        assert "(support/parallel_nan.py:24; line " in layer
        assert "has NaN itself" in given
