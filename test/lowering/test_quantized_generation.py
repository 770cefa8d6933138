"""
Packages with weights of 8 and 4 bits on gloo processes: greedy tokens equal those of
transformers with the dequantised weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.generation import (
    assert_generates,
    generated_by_transformers,
    quantized_program,
    tiny_model,
)
from support.thoroughness import IS_THOROUGH

from distir.dialects.train_ops.quantized_weights import WEIGHT_FORMATS
from distir.transforms.precision.weight_quantization import (
    QuantizedWeight,
    quantized,
)

GROUP = 8
NEW_TOKENS = 32 if IS_THOROUGH else 6

CASES: list[tuple[str, str, dict[str, int]]] = [
    *[("llama", kind, {"t": 2}) for kind in WEIGHT_FORMATS],
    ("llama", "int4", {"d": 2, "t": 2}),
    ("llama", "fp8", {"p": 2}),
    ("gpt2", "int8", {"t": 2}),
    ("gpt2", "int4", {"p": 2}),
    ("t5", "int4", {"t": 2}),
    ("deepseek_v3", "int8", {"p": 2}),
    ("mamba", "int8", {"t": 2}),
    *[("mixtral", kind, {"e": 2}) for kind in WEIGHT_FORMATS],
    ("mixtral", "int4", {"t": 2}),
    ("qwen3_moe", "fp8", {"e": 2}),
    ("deepseek_v3", "int4", {"e": 2}),
]
EXPERTS = {"mixtral": 2, "qwen3_moe": 2, "deepseek_v3": 1}
"""The numbers of layers with experts."""


def dequantized(matrix: Any, weight: QuantizedWeight) -> Any:
    """The matrices that the quantised form of matrices stands for, in f32."""
    parts = quantized(matrix, weight)
    scale = parts["scale"].astype(np.float32)
    if weight.format == "int4":
        packed = parts["quantized"]
        levels = np.stack((packed % 16, packed // 16), -1).reshape(*scale.shape, -1)
        moved = levels.astype(np.float32) - parts["zero"][..., None]
        rows = (moved * scale[..., None]).reshape(*scale.shape[:-1], -1)
    else:
        rows = parts["quantized"].astype(np.float32) * scale[..., None]
    return rows.swapaxes(-1, -2) if weight.is_turned else rows


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "format", "plan"), CASES, ids=str)
def test_tokens_equal_those_of_dequantised_weights(
    kind: str, format: str, plan: dict[str, int], tmp_path: Path
) -> None:
    model = tiny_model(kind)
    program, weights = quantized_program(model, format, GROUP)
    state = model.state_dict()
    experts = [name for name in weights if state[name].ndim == 3]
    assert len(experts) == 2 * EXPERTS.get(kind, 0)
    for name, weight in weights.items():
        values = dequantized(state[name].numpy(), weight)
        assert not np.array_equal(values, state[name].numpy())
        state[name] = torch.tensor(np.ascontiguousarray(values))
    model.load_state_dict(state)
    wanted = generated_by_transformers(model, new=NEW_TOKENS)
    assert_generates(
        wanted, program, plan, tmp_path, NEW_TOKENS, in_place=kind != "mamba"
    )
