"""Sequence parallelism in a training step: what each layer communicates, and where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.tensors import shape_of
from distir.frontends.models.basic import build_gpt
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.program import functions, scope_of

SIZES: dict[str, dict[str, Any]] = {
    "small": {"d_model": 64, "heads": 4, "vocab": 128, "batch": 4, "seq": 32},
    "gpt2-medium": {"d_model": 1024, "heads": 16, "vocab": 50304, "batch": 4, "seq": 1024},
    "gpt3-6.7b": {"d_model": 4096, "heads": 32, "vocab": 50304, "batch": 1, "seq": 2048},
}  # fmt: skip


def step(size: str, **options: Any) -> ModuleOp:
    """A distributed training step of a GPT with one matrix for query, key and value."""
    module = build_gpt(layers=3, dtype="bf16", **SIZES[size])
    DifferentiatePass().apply(Context(), module)
    DistributePass(**options).apply(Context(), module)
    return module


def communication(module: ModuleOp, function: str) -> Iterator[Operation]:
    for op in functions(module)[function].body.block.ops:
        if isinstance(op, CollectiveOp) and op.name != "collective.slice":
            yield op


def listed(module: ModuleOp, function: str) -> list[tuple[str, str]]:
    """The collectives of a function, each with its place in the layer."""
    return [
        (op.name.split(".")[1], scope_of(op).removeprefix("transformer.h.*."))
        for op in communication(module, function)
    ]


FORWARD = [
    ("all_gather", "attn.c_attn"),
    ("reduce_scatter", "attn.c_proj"),
    ("all_gather", "mlp.c_fc"),
    ("reduce_scatter", "mlp.c_proj"),
]
BACKWARD = [
    ("all_gather", "mlp.c_proj"),
    ("reduce_scatter", "mlp.c_fc"),
    ("all_gather", "attn.c_proj"),
    ("reduce_scatter", "attn.c_attn"),
]

KEPT = [("all_gather", "mlp.c_fc"), ("all_gather", "attn.c_attn")]
"""What norms give is kept in parts, and gathered for the gradients of the columns."""


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ("small", {"t": 4}),
        ("gpt2-medium", {"t": 4}),
        ("gpt2-medium", {"d": 2, "t": 4, "zero": 1}),
        ("gpt3-6.7b", {"t": 8}),
    ],
)
def test_each_all_reduce_becomes_two_halves(size: str, options: dict[str, Any]):
    """
    Megatron's scheme: every all-reduce of activations is a reduce-scatter behind the row
    and an all-gather in front of the column, in both directions; none is left.
    """
    module = step(size, sequence_parallel=True, **options)
    assert listed(module, "layer_forward") == FORWARD
    assert sorted(listed(module, "layer_backward")) == sorted([*BACKWARD, *KEPT])
    tokens = SIZES[size]["batch"] * SIZES[size]["seq"] * SIZES[size]["d_model"]
    for function in ("layer_forward", "layer_backward"):
        for op in communication(module, function):
            whole = op.results[0 if "gather" in op.name else -1].type
            elements = 1
            for n in shape_of(whole):
                elements *= n
            assert elements == tokens
    # What the rest of the step reduces are gradients of norms and biases, one number for
    # each feature, whose tokens are split, and the loss's numbers for each label.
    labels = SIZES[size]["batch"], SIZES[size]["seq"]
    for op in communication(module, "main"):
        if op.name == "collective.all_reduce" and options.get("d", 1) == 1:
            found = shape_of(op.results[0].type)
            assert len(found) <= 1 or (found == labels and scope_of(op) == "loss")


def test_without_it_they_are_all_reduces():
    module = step("gpt2-medium", t=4)
    assert [name for name, _ in listed(module, "layer_forward")] == ["all_reduce"] * 2
    assert [name for name, _ in listed(module, "layer_backward")] == ["all_reduce"] * 2


def test_recomputation_repeats_no_last_reduce_scatter():
    """A recomputed forward needs all of its communication but what it ends in."""
    module = step("small", t=4, sequence_parallel=True, checkpoint="full")
    assert listed(module, "layer_forward") == FORWARD
    (name,) = (n for n in functions(module) if "recompute" in n)
    assert listed(module, name) == FORWARD[:-1] + BACKWARD
