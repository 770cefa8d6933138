"""Decoding with a cache of keys and values: the same logits as without, layer by layer."""

import numpy as np
import pytest
from support.programs import inferred_types, ops_of, round_trip
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.func import FuncOp

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import Shard, layout_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.frontends.models.decoder import cache_names
from distir.frontends.models.gpt_decoding import build_gpt_decoding
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.distribute import DistributePass
from distir.program import argument_names, entry_function

LAYERS, WIDTH, HEADS, VOCAB, BATCH = 2, 16, 4, 32, 2


def decoding(cached, distribution=None):
    module = build_gpt_decoding(LAYERS, WIDTH, HEADS, VOCAB, BATCH, cached)
    if distribution:
        first = module.body.block.first_op
        module.body.block.insert_op_before(load_cluster("cpu", 4), first)
        DistributePass(**distribution).apply(Context(), module)
    return module


def run(module, values):
    """The results of a program on arguments by name."""
    return run_program(
        module, [values[n] for n in argument_names(entry_function(module))]
    )


IN_HEADS = ("*.attn.key:1=t", "*.attn.value:1=t")
"""The request that caches are split by heads."""


@pytest.mark.parametrize(
    "distribution",
    chosen(
        [None, {"t": 2}, {"t": 2, "shard": IN_HEADS}, {"d": 2, "t": 2}, {"p": 2}],
        [None, {"t": 2, "shard": IN_HEADS}, {"d": 2, "t": 2}, {"p": 2}],
    ),
)
def test_tokens_one_by_one(distribution):
    """Three tokens at once, then two more from the cache: as all five at once."""
    whole = build_gpt(LAYERS, WIDTH, HEADS, VOCAB, BATCH, 5)
    values = dict(
        zip(
            argument_names(entry_function(whole)),
            random_arguments(whole, 0),
            strict=True,
        )
    )
    tokens, positions = values["input_ids"], values["transformer.wpe.weight"]
    (expected,) = run(whole, values)

    def cut(count):
        return {**values, "transformer.wpe.weight": positions[:count]}

    prefill = build_gpt(LAYERS, WIDTH, HEADS, VOCAB, BATCH, 3, cache=True)
    logits, *cache = run(prefill, {**cut(3), "input_ids": tokens[:, :3]})
    np.testing.assert_allclose(logits, expected[:, :3], rtol=1e-4, atol=1e-5)
    for n in (3, 4):
        given = {
            "input_ids": tokens[:, n : n + 1],
            **dict(zip(cache_names(LAYERS), cache, strict=True)),
        }
        logits, *own = run(decoding(n, distribution), {**cut(n + 1), **given})
        np.testing.assert_allclose(logits[:, 0], expected[:, n], rtol=1e-4, atol=1e-5)
        cache = [np.concatenate(pair, axis=2) for pair in zip(cache, own, strict=True)]


def test_a_cache_in_heads_splits_the_layer_by_heads():
    """Nothing is gathered: a layer sums its two products of rows, and the embeddings."""
    module = decoding(8, {"t": 4, "shard": IN_HEADS})
    found = [op.name for op in module.walk() if isinstance(op, CollectiveOp)]
    assert found == ["collective.all_reduce"] * 3
    layouts = [
        layout_of(argument)
        for function in module.walk()
        if isinstance(function, FuncOp)
        for name, argument in zip(argument_names(function), function.args, strict=False)
        if name.endswith("attn.c_attn.weight")
    ]
    assert layouts
    for layout in layouts:
        assert layout is not None
        assert layout.dim(1) == (Shard("t", WIDTH // 4),)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_it_is_valid(dtype):
    for module in (
        build_gpt_decoding(2, 64, 4, 128, 2, 8, dtype),
        build_gpt(2, 64, 4, 128, 2, 8, dtype, cache=True),
        build_gpt(2, 64, 4, 128, 2, 8, dtype, cache=True, fused_attention=True),
    ):
        round_trip(module)
        for op in ops_of(module):
            assert inferred_types(op) == [r.type for r in op.results], str(op)


def test_a_step_reads_the_cache_once():
    """A token more in the cache: a key and a value of each layer are read, nothing else."""

    def seconds(cached):
        module = build_gpt_decoding(1, 8192, 64, 128, 64, cached, "f16")
        return simulate(module, load_cluster("dgx-a100")).step_time_s

    more = (seconds(8192) - seconds(4096)) / 4096
    kind = next(iter(load_cluster("dgx-a100").kinds))
    read = 2 * 64 * 8192 * 2 / kind.memory_bandwidth.value.data
    assert read < more < 1.1 * read


def test_refused():
    with pytest.raises(DistIRError, match="3 heads do not divide"):
        build_gpt_decoding(1, 16, 3, 8, 1, 4)
    with pytest.raises(DistIRError, match="cached is 0"):
        build_gpt_decoding(1, 16, 2, 8, 1, 0)
