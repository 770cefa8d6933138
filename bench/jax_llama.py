"""
How long `distir.jax.search` takes for train steps of LLaMA 3, from their shapes alone.

    .venv-jax/bin/python bench/jax_llama.py 8B scan     # or 70B, unrolled

A run is a whole process, with JAX's own time, as a user starts it: the parameters come from
`jax.eval_shape`, the search has its defaults. Prints the plan, the CPU seconds and the
memory. Without arguments all four are run, one process each.

    .venv-jax/bin/python bench/jax_llama.py --layers 2 4 8 16

shows how the time grows with the length of a program: 8B with so many unrolled layers is
imported, and distributed without functions for its layers.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import distir
import distir.jax
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.tools.files import apply_passes


class Sizes(NamedTuple):
    """The sizes of a LLaMA 3."""

    layers: int
    width: int
    hidden: int
    heads: int
    groups: int = 8
    head: int = 128
    vocabulary: int = 128256


MODELS = {"8B": Sizes(32, 4096, 14336, 32), "70B": Sizes(80, 8192, 28672, 64)}
CLUSTER = "dgx-h100"

SEQUENCES, TOKENS, DEVICES = 64, 4096, 64


def parameters_of(sizes: Sizes, is_scan: bool) -> Any:
    """Returns random parameters: one array for all layers, or a list of layers."""

    def draw(*shape: int) -> Any:
        return jax.random.normal(jax.random.key(0), shape, jnp.float32) * 0.02

    keys, queries = sizes.groups * sizes.head, sizes.heads * sizes.head
    shapes = {
        "norm1": (sizes.width,), "norm2": (sizes.width,),
        "wq": (sizes.width, queries), "wo": (queries, sizes.width),
        "wk": (sizes.width, keys), "wv": (sizes.width, keys),
        "w_gate": (sizes.width, sizes.hidden), "w_up": (sizes.width, sizes.hidden),
        "w_down": (sizes.hidden, sizes.width),
    }  # fmt: skip

    def layer(*count: int) -> Any:
        return {name: draw(*count, *shape) for name, shape in shapes.items()}

    layers = layer(sizes.layers) if is_scan else [layer() for _ in range(sizes.layers)]
    return {
        "embed": draw(sizes.vocabulary, sizes.width),
        "layers": layers,
        "norm": draw(sizes.width),
        "head": draw(sizes.width, sizes.vocabulary),
    }


def rms_norm(x: Any, weight: Any) -> Any:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return (wide * scale * weight).astype(x.dtype)


def rotated(x: Any) -> Any:
    """Applies rotary positions to (batch, tokens, heads, head)."""
    half = x.shape[-1] // 2
    rates = 500000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * rates
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    left, right = x[..., :half], x[..., half:]
    found = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)
    return found.astype(x.dtype)


def attention(own: Any, x: Any, sizes: Sizes) -> Any:
    batch, tokens, _ = x.shape

    def heads(name: str) -> Any:
        return (x @ own[name]).reshape(batch, tokens, -1, sizes.head)

    q, k, v = rotated(heads("wq")), rotated(heads("wk")), heads("wv")
    q = q.reshape(batch, tokens, sizes.groups, -1, sizes.head)
    scores = jnp.einsum("btghd,bsgd->bghts", q, k).astype(jnp.float32)
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))
    scores = jnp.where(mask, scores * sizes.head**-0.5, -1e30)
    weights = jax.nn.softmax(scores).astype(x.dtype)
    out = jnp.einsum("bghts,bsgd->btghd", weights, v)
    return out.reshape(batch, tokens, -1) @ own["wo"]


def layer(sizes: Sizes, x: Any, own: Any) -> Any:
    norms = {name: own[name] for name in ("norm1", "norm2")}
    own = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), own)
    x = x + attention(own, rms_norm(x, norms["norm1"]), sizes)
    y = rms_norm(x, norms["norm2"])
    return x + (jax.nn.silu(y @ own["w_gate"]) * (y @ own["w_up"])) @ own["w_down"]


def loss(sizes: Sizes, parameters: Any, batch: Any) -> Any:
    """Returns the mean cross entropy of the next tokens; each layer is recomputed."""
    x = parameters["embed"].astype(jnp.bfloat16)[batch["tokens"]]
    own = jax.checkpoint(partial(layer, sizes))
    layers = parameters["layers"]
    if isinstance(layers, list):
        for each in layers:
            x = own(x, each)
    else:
        x, _ = jax.lax.scan(lambda x, each: (own(x, each), None), x, layers)
    x = rms_norm(x, parameters["norm"]) @ parameters["head"].astype(jnp.bfloat16)
    found = optax.softmax_cross_entropy_with_integer_labels(
        x.astype(jnp.float32), batch["labels"]
    )
    return found.mean()


def train_step_of(sizes: Sizes) -> tuple[Callable[..., Any], Any]:
    """Returns the train step with AdamW, and its optimizer."""
    optimizer = optax.adamw(3e-4, weight_decay=0.1)

    def train_step(state: Any, batch: Any) -> Any:
        parameters, moments = state
        value, grads = jax.value_and_grad(partial(loss, sizes))(parameters, batch)
        changes, moments = optimizer.update(grads, moments, parameters)
        return (optax.apply_updates(parameters, changes), moments), value

    return train_step, optimizer


def traced_args(sizes: Sizes, is_scan: bool) -> tuple[Callable[..., Any], Any]:
    """Returns the train step and its arguments, which have no values."""
    train_step, optimizer = train_step_of(sizes)

    def start() -> Any:
        parameters = parameters_of(sizes, is_scan)
        return parameters, optimizer.init(parameters)

    tokens = jax.ShapeDtypeStruct((SEQUENCES, TOKENS), jnp.int32)
    return train_step, (jax.eval_shape(start), {"tokens": tokens, "labels": tokens})


def run(model: str, is_scan: bool) -> None:
    """Searches for a plan, and prints it with the CPU seconds and the memory."""
    train_step, args = traced_args(MODELS[model], is_scan)
    try:
        plan = distir.jax.search(train_step, args, cluster=CLUSTER, devices=DEVICES)
        print(plan)
    finally:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds, size = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6
        layers = "scan" if is_scan else "unrolled"
        print(f"{model} {layers}: {seconds:.0f} CPU s, {size:.2f} GB")


WAYS: list[dict[str, int]] = [{"d": 8, "t": 8, "zero": 1}, {"d": 64, "zero": 3}]


def grow(counts: list[int]) -> None:
    """
    Prints the CPU seconds of the steps of 8B with these numbers of layers: the import
    of the unrolled program (JAX's part included), the search for its layers, and its
    distribution by each of `WAYS` while it has no functions for them.
    """
    ways = ["".join(f"{k}{n}" for k, n in way.items()) for way in WAYS]
    print("layers      ops   import  outline", *(f"{way:>12}" for way in ways))
    for count in counts:
        train_step, args = traced_args(MODELS["8B"]._replace(layers=count), False)
        times = [time.process_time()]
        program = distir.jax.import_function(train_step, args, outline=False).program
        times.append(time.process_time())
        apply_passes(program.module.clone(), OutlineRepeatsPass())
        times.append(time.process_time())
        for way in WAYS:
            distir.distribute(program, cluster=CLUSTER, devices=64, **way)
            times.append(time.process_time())
        spent = [end - start for start, end in pairwise(times)]
        ops = sum(1 for _ in program.module.walk())
        found = "".join(f"{seconds:13.1f}" for seconds in spent[2:])
        print(f"{count:6}{ops:9}{spent[0]:9.1f}{spent[1]:9.1f}{found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", nargs="+", type=int, dest="counts")
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("layers", nargs="?", choices=("scan", "unrolled"))
    given = parser.parse_args()
    if given.counts:
        grow(given.counts)
        return
    if given.layers:
        run(given.model, given.layers == "scan")
        return
    for model in [given.model] if given.model else MODELS:
        for layers in ("scan", "unrolled"):
            command = [sys.executable, __file__, model, layers]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
