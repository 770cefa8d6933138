"""
Packages whose cache is in pages, on gloo processes: greedy tokens equal those of
transformers, or with 8 bits those from contiguous caches of 8 bits, and pools of pages stay
where they are.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from support.generation import (
    SIZES,
    distributed,
    generated,
    generated_by_transformers,
    imported,
    quantized_program,
    tiny_model,
)
from support.thoroughness import IS_THOROUGH, chosen

from distir.dialects.train_ops.paged_attention import PagedAttentionOp, PagedReadOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.frontends.models.generation import build_serving
from distir.frontends.models.llama import build_llama
from distir.frontends.serving import Paging
from distir.lowering.torch_package import write_package
from distir.program import Program
from distir.program.entries import one_entry
from distir.tools.entry_checks import compared

BUILDERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "built llama": (build_llama, {"kv_heads": 2, "ffn": 64}),
    "built gpt2": (build_gpt, {}),
}
MODEL: dict[str, Any] = {"layers": 2, "d_model": 32, "heads": 4, "vocab": 96}
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"rms_norm_eps": 1e-5},
    "gpt2": {"n_positions": SIZES.cache},
    "gemma3": {"layer_types": ["sliding_attention", "full_attention"]},
}

# After 32 tokens, the four sequences have 34, 40, 32 and 36 tokens in the cache: 19 pages of
# 8, where sequences of 48 tokens would need 24.
PLANS: list[tuple[str, Paging, dict[str, int]]] = [
    ("built llama", Paging(1, 19, 8), {"t": 2}),
    ("built llama", Paging(2, 10, 8), {"d": 2, "t": 2}),
    ("built llama", Paging(4, 7, 7), {"p": 2, "k": 2}),
    ("built gpt2", Paging(1, 36, 4), {"p": 2}),
    ("llama", Paging(2, 10, 8), {"d": 2, "t": 2}),
    ("deepseek_v3", Paging(1, 19, 8), {"p": 2}),
    ("deepseek_v3", Paging(2, 11, 8), {"e": 2}),
    ("gemma3", Paging(1, 19, 8), {"t": 2}),
]
QUICK = [PLANS[0]]
NEW_TOKENS = 32 if IS_THOROUGH else 12


@pytest.mark.parametrize(("kind", "paging", "plan"), chosen(PLANS, QUICK), ids=str)
def test_tokens_equal_those_of_transformers(
    kind: str, paging: Paging, plan: dict[str, int], tmp_path: Path
) -> None:
    name, sizes = kind.split()[-1], replace(SIZES, paging=paging)
    model = tiny_model(name, **CHANGES.get(name, {}))
    if kind in BUILDERS:
        builder, options = BUILDERS[kind]
        program = build_serving(builder, sizes, **MODEL, **options)
        weights: Any = {name: v.numpy() for name, v in model.state_dict().items()}
    else:
        found = imported(model, sizes)
        program, weights = found.module, found.weights
    module = distributed(program, **plan)
    names = {a.name for a in Program(one_entry(program, "decode")).arguments}
    own = {name: value for name, value in weights.items() if name in names}
    differences = compared(
        (program, module), ("model", "distributed"), own, {}, 0, None
    )
    assert differences[-1].name == "decode after prefill"
    assert all(each.within for each in differences)
    folder = write_package(module, tmp_path / "package")
    processes = prod(n for axis, n in plan.items() if axis != "k")
    made = generated(folder, own, processes, new=NEW_TOKENS, in_place="k" not in plan)
    assert made == generated_by_transformers(model, new=NEW_TOKENS)


NARROW: list[tuple[str, str, Paging, dict[str, int]]] = [
    ("llama", "int8", Paging(1, 19, 8), {"t": 2}),
    ("llama", "fp8", Paging(2, 10, 8), {"d": 2, "t": 2}),
    ("gpt2", "fp8", Paging(1, 36, 4), {"p": 2}),
    ("gemma3", "int8", Paging(1, 19, 8), {"t": 2}),
    ("deepseek_v3", "fp8", Paging(2, 11, 8), {"e": 2}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "format", "paging", "plan"), NARROW, ids=str)
def test_pages_of_8_bits_give_the_tokens_of_caches_of_8_bits(
    kind: str, format: str, paging: Paging, plan: dict[str, int], tmp_path: Path
) -> None:
    model = tiny_model(kind, **CHANGES.get(kind, {}))
    plain, paged = (
        quantized_program(model, None, cache=format, sizes=sizes)[0]
        for sizes in (SIZES, replace(SIZES, paging=paging))
    )
    module = distributed(paged.module, **plan)
    modules, names = (paged.module, module), ("model", "distributed")
    found = compared(modules, names, paged.weights, {}, 0, None)
    assert [each.name for each in found][-1] == "decode after prefill"
    assert all(each.within for each in found)
    made = [
        generated(
            write_package(each, tmp_path / name), weights, processes, new=NEW_TOKENS
        )
        for name, each, weights, processes in (
            ("plain", plain.module, plain.weights, 1),
            ("paged", module, paged.weights, prod(plan.values())),
        )
    ]
    assert made[1] == made[0]


@pytest.mark.slow
def test_layers_without_a_window_attend_to_pages() -> None:
    """Attention reads pages where they are; latents are read in order, and expanded."""
    sizes = replace(SIZES, paging=Paging(1, 19, 8))
    counts = {"llama": (2, 0), "gemma3": (1, 0), "deepseek_v3": (0, 4)}
    for kind, (attended, read) in counts.items():
        model = tiny_model(kind, **CHANGES.get(kind, {}))
        decode = one_entry(imported(model, sizes, check=False).module, "decode")
        calls = 2 if kind == "llama" else 1  # its layers share one function
        ops = list(decode.walk())
        assert calls * sum(isinstance(op, PagedAttentionOp) for op in ops) == attended
        assert calls * sum(isinstance(op, PagedReadOp) for op in ops) == read


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", "mamba"])
def test_models_without_such_layers_are_refused(kind: str) -> None:
    with pytest.raises(DistIRError, match="layers that attend to all tokens"):
        imported(tiny_model(kind), replace(SIZES, paging=Paging(1, 19, 8)))
