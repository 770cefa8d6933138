"""Modules that cannot share parameters are told so."""

from __future__ import annotations

import pytest
from support.parallel_sharing import refused
from support.ranks import run_ranks


@pytest.mark.slow
def test_modules_that_share_nothing() -> None:
    for found in run_ranks(2, refused):
        assert "Task has no parameter of Task" in found["strangers"]
        assert "give both modules the same options" in found["options"]
        assert found["without ZeRO"] == "no error"
