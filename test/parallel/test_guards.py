"""A parallel module has the attributes of its source, and says where it is not that module."""

from __future__ import annotations

from support.parallel_guards import attributes_and_refusals
from support.ranks import run_ranks


def test_attributes_and_refusals() -> None:
    for found in run_ranks(2, attributes_and_refusals, dict(t=2)):
        assert found["name"] == "input_ids"
        assert found["parameters"] and found["source"]
        assert found["same"] and not found["absent"]
        for name in ("hook", "hook of a list"):
            assert "a hook on it would never run" in found[name]
        assert "cannot be called" in found["call"]
        assert "cannot be converted to torch.float16" in found["half"]
        assert "cannot be converted to torch.float64" in found["type"]
        assert "cannot be converted to torch.float16" in found["half of a part"]
        assert "cannot be converted to torch.float64" in found["type of a part"]
        assert "call eval() on the part before" in found["mode of a part"]
        assert "compiled=True" in found["compile"]
        assert "'transformer.wte.weight' is a whole tensor" in found["whole tensors"]
        assert found["parts"] and found["modes"] == [True, False, False, True]
        assert "has device cpu" in found["device"]
        assert 'checkpoint="full"' in found["checkpointing"]
        assert found["hook of the module"]
