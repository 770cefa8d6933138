"""A parallel module has the attributes of its source, and says where it is not that module."""

from __future__ import annotations

import pytest
from support.parallel_guards import attributes_and_refusals, replacements
from support.ranks import run_ranks
from support.thoroughness import sampled


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
        assert "compiled=True" in found["torch.compile"]
        assert "whole_state_dict() of rank 0" in found["saved"]
        assert "whole_state_dict() of rank 0" in found["a saved part"]
        assert "after parallelize" in found["an earlier optimizer"]
        assert "without .module" in found["module of DDP"]
        assert "full_tensor()" in found["unshard of FSDP2"]
        assert "'transformer.wte.weight' is a whole tensor" in found["whole tensors"]
        assert found["parts"] and found["modes"] == [True, False, False, True]
        assert "has device cpu" in found["device"]
        assert 'checkpoint="full"' in found["checkpointing"]
        assert 'checkpoint="full"' in found["checkpointing of a part"]
        assert found["channels_last"] == "no error"  # it has no tensor of images
        assert "this rank's part" in found["shared memory"]
        assert found["hook of the module"]
        for name in ("fully_shard", "fully_shard of a part", "fully_shard of parts"):
            assert "parameters are split already" in found[name], name
            assert "leave fully_shard out" in found[name] and "zero=3" in found[name]
        assert "leave replicate out" in found["replicate"]


@pytest.mark.parametrize("options", sampled([dict(d=2, zero=3), dict(t=2)], 2), ids=str)
def test_replacements(options: dict[str, int]) -> None:
    for found in run_ranks(2, replacements, options):
        for name in (
            *("assigned", "removed", "deleted", "tied", "registered", "a module"),
            *("registered on a part", "a buffer", "appended", "taken out", "put in"),
            *("by load_state_dict", "parametrized"),
        ):
            assert "cannot be added, replaced or removed" in found[name], name
        assert "parameter.data.copy_(value)" in found["assigned data"]
        assert "'temperature' had the value 2.0 when" in found["an attribute"]
        assert "'p' had the value 0.0 when" in found["a rate of dropout"]
        assert "initialise the module before parallelize" in found["apply"]
        assert "strides like (8, 4, 2, 1)" in found["channels_last"]
        assert found["filled"] == [[0.25] * 4] * 2
        assert found["linear"] == ["layers.0", "layers.1"]
        assert found["attributes"][0] == 4
        assert found["attributes"][1].startswith("Conv2d(2, 2")
        assert found["kinds"] == (True, 2)
        assert found["trains"]
