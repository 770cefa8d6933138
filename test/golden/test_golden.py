"""The golden record: a sample of it in `make test`, all of it by `make golden`."""

from __future__ import annotations

import pytest

from golden.models import MODELS
from golden.plans import PLANS, planned
from golden.record import RECORD, all_cases, differences


def test_every_plan_and_model_is_in_the_record() -> None:
    cases = planned().values()
    assert {model for model, _, _ in cases} == set(MODELS)
    for options in PLANS:
        assert sum(options == own for _, _, own in cases) >= 5
    assert len(all_cases()) == len({case.name for case in all_cases()}) >= 220


def test_differences_are_named() -> None:
    before = {"a": {"seconds": 1.0, "program": "x"}, "b": {"seconds": 1.0}}
    after = {"a": {"seconds": 1.0, "program": "y"}, "c": {"seconds": 1.0}}
    assert differences(before, before) == []
    assert differences(before, after) == ["a: program: x became y", "b: gone", "c: new"]


@pytest.mark.slow
@pytest.mark.skipif(not RECORD.exists(), reason="make golden WRITE=1 makes the record")
def test_the_record_is_that_of_the_code() -> None:
    from golden.record import made, recorded

    assert differences(recorded(), dict(made(all_cases(), jobs=2))) == []
