"""What `pad_to` cannot pad, or not rightly, is an error."""

from __future__ import annotations

import pytest
from support.parallel_padding import refused
from support.ranks import run_ranks


@pytest.mark.slow
def test_paddings_that_cannot_be() -> None:
    (found,) = run_ranks(1, refused)
    assert "in ascending order" in found["order"] and "is 0" in found["none"]
    assert "give pad_to too" in found["alone"]
    assert "'word', which is no input; there are words, labels" in found["name"]
    assert "has length 11, and the largest that pad_to allows is 10" in found["long"]
    for name in ("labels", "sees"):
        assert "padding changes the loss of" in found[name]
    assert found["right"] == "no error"
