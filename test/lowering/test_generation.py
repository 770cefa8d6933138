"""
Packages with a prefill and a decode on gloo processes: greedy tokens equal those of
transformers, and the cache stays where it is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.generation import (
    distributed,
    generated,
    generated_by_transformers,
    imported,
    tiny_model,
)

from distir.lowering.torch_package import write_package
from distir.tools.entry_checks import compared

PLANS: dict[str, list[dict[str, int]]] = {
    "llama": [{"t": 2}, {"d": 2, "t": 2}, {"p": 2}, {"p": 2, "k": 2}],
    "mixtral": [{"e": 2}, {"t": 2}],
    "mistral": [{"t": 2}],
    "deepseek_v3": [{"e": 2}, {"p": 2}],
    "mamba": [{"t": 2}, {"p": 2}],
}


@pytest.mark.parametrize("kind", PLANS)
def test_tokens_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model = tiny_model(kind)
    wanted = generated_by_transformers(model)
    program = imported(model, check=False)
    for plan in PLANS[kind]:
        module = distributed(program.module, **plan)
        modules, names = (program.module, module), ("model", "distributed")
        found = compared(modules, names, program.weights, {}, 0, None)
        assert [each.name for each in found][-1] == "decode after prefill"
        assert all(each.within for each in found), plan
        folder = write_package(module, tmp_path / "_".join(plan))
        processes = plan.get("d", 1) * plan.get("t", 1) * plan.get("p", 1)
        processes *= plan.get("e", 1)
        # Micro-batches are put together again; states are new tensors.
        in_place = "k" not in plan and kind != "mamba"
        made = generated(folder, program.weights, processes, in_place=in_place)
        assert made == wanted, plan
