"""A cross-entropy whose classes are split: the same loss and gradients, no logits sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cost_programs import cluster
from support.pipelines import assert_equal_results, assert_same, distributed
from support.thoroughness import sampled, tries
from support.training_programs import training_gpt, training_head
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.search_sharding import SearchShardingPass
from distir.program import argument_names, entry_function


def names(module: ModuleOp) -> set[str]:
    return {op.name for op in module.walk()}


def assert_split(module: ModuleOp) -> None:
    """The loss and its gradient share maxima and sums, and no logits are sent."""
    assert "train.cross_entropy_sum" in names(module)
    assert not names(module) & {"train.cross_entropy", "train.cross_entropy_grad"}
    totals = [op for op in module.walk() if op.name == "train.exponential_sum"]
    losses = [op for op in module.walk() if op.name == "train.cross_entropy_sum"]
    assert len(totals) == len(losses)
    logits = shape_of(totals[0].operands[0].type)
    for op in module.walk():
        if isinstance(op, CollectiveOp):
            assert all(shape_of(r.type) != logits for r in op.results)


@st.composite
def programs(draw: st.DrawFn) -> tuple[ModuleOp, list[Any], dict[str, int]]:
    """A head, its arguments, and what to distribute it over."""
    options = draw(
        st.sampled_from([{"t": 2}, {"t": 4}, {"d": 2, "t": 2}, {"t": 2, "k": 2}])
    )
    places = tuple(draw(st.lists(st.sampled_from([4, 6]), min_size=1, max_size=2)))
    if len(places) == 1:
        # Tokens enough that their logits are not gathered.
        places = (4 * places[0],)
    classes = draw(st.sampled_from([16, 24, 64]))
    ignored = draw(st.sampled_from([None, -100, 0, classes - 1]))
    module = training_head(places, classes, ignored)
    values = random_arguments(module, draw(st.integers(0, 1000)))
    labels = draw(
        st.lists(
            st.integers(0, classes - 1) if ignored is None
            else st.one_of(st.integers(0, classes - 1), st.just(ignored)),
            min_size=int(np.prod(places)),
            max_size=int(np.prod(places)),
        )
    )  # fmt: skip
    at = argument_names(entry_function(module)).index("labels")
    values[at] = np.array(labels).reshape(places)
    if ignored is not None:
        values[at].flat[0] = 1  # not all of them
    return module, values, options


@settings(max_examples=tries(25))
@given(programs())
def test_the_same_loss_and_gradients(drawn: tuple[ModuleOp, list[Any], dict[str, int]]):
    module, values, options = drawn
    split = distributed(module, shard=("w:1=t",), **options)
    assert_split(split)
    expected, found = run_program(module, values), run_program(split, values)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_of_all_floats(dtype: str):
    """16-bit logits are summed in f32."""
    module = training_head((4, 6), 64, None, dtype)
    tolerance = 1e-10 if dtype == "f64" else 2e-2
    assert_split(assert_same(module, tolerance, t=2, shard=("w:1=t",)))


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"t": 4, "checkpoint": "full"},
            {"t": 2, "sequence_parallel": True},
            {"d": 2, "t": 2, "zero": 3, "sequence_parallel": True},
            {"t": 2, "p": 2, "k": 2},
            {"d": 2, "t": 2, "p": 2, "k": 2, "zero": 2, "schedule": "1f1b"},
        ],
        3,
    ),
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()),
)
def test_of_a_gpt(options: dict[str, Any]):
    """It is chosen because it costs less, whatever else is asked for."""
    assert_split(assert_same(training_gpt(), **options))


def test_the_search_finds_it():
    """Where few labels meet a large matrix, nothing is asked for."""
    module = training_head((4, 4), 512, -100)
    values = random_arguments(module, 3)
    expected = run_program(module, values)
    on = cluster(4, levels=((4, 1e6, 1e-7),), launch=1e-7)
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    SearchShardingPass(("t=4",)).apply(Context(), module)
    assert_split(module)
    assert_equal_results(module, expected, run_program(module, values))


def test_a_label_that_is_no_class_is_an_error():
    """Although no device can tell: each knows its own classes only."""
    split = distributed(training_head((4, 6), 32), t=2, shard=("w:1=t",))
    assert_split(split)
    at = argument_names(entry_function(split)).index("labels")
    values = random_arguments(split, 0)
    assert values[at].max() < 32 and len(set(values[at].flat)) > 8
    values[at][1, 2] = 32
    with pytest.raises(DistIRError, match="label 32 is none of the 32 classes"):
        run_program(split, values)


def test_whole_classes_stay_one_op():
    """Nothing changes for data parallelism."""
    found = names(distributed(training_head((4, 4), 8, None), d=4))
    assert {"train.cross_entropy", "train.cross_entropy_grad"} <= found
    assert not any(name.startswith("train.exponential") for name in found)
