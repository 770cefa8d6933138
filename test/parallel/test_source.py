"""
The module that a script gives to `parallelize`: its values are freed with it, and stay with
a script that keeps it.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.parallel_source import freed_source, kept_source
from support.ranks import run_ranks
from support.thoroughness import sampled

PLANS: list[dict[str, Any]] = [dict(d=2, zero=3), dict(t=2), dict(d=2), dict(p=2, k=2)]


@pytest.mark.parametrize("options", sampled(PLANS, 4), ids=str)
def test_values_that_the_script_drops_are_freed(options: dict[str, Any]) -> None:
    for found in run_ranks(2, freed_source, options):
        assert found["alive"] == 0
        assert found["source"] == {"meta"}
        assert found["losses"] == pytest.approx(found["wanted"], rel=1e-5)
        assert found["layers"][0] == "ModuleList"
        if options.get("zero") == 3:
            assert found["part"] == 0.5
            assert found["named"] == [
                *("linear.bias", "linear.weight", "norm.bias", "norm.weight")
            ]


def test_a_script_that_keeps_the_module_keeps_its_values() -> None:
    for found in run_ranks(2, kept_source, dict(d=2, zero=3)):
        assert found == {
            "same": True,
            "values": True,
            "classes": ["Words", "ModuleList"],
        }
