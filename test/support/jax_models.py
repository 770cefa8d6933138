"""Training steps of small models of JAX, Flax and optax, with values for them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from support.jax_files import normal_numbers


class Step(NamedTuple):
    """A training step, and its arguments: a state and a batch."""

    function: Callable[..., Any]
    args: tuple[Any, ...]

    def in_double(self) -> Step:
        """Returns the step with floats of 64 bits. Call it with `jax.enable_x64()`."""
        args = jax.tree_util.tree_map(
            lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, self.args
        )
        return Step(self.function, args)


def step_of(
    loss: Callable[..., Any],
    parameters: Any,
    batch: Any,
    optimizer: Any = None,
    stats: Any = None,
) -> Step:
    """
    Returns the step of a loss: of parameters and batch, or with `stats` of parameters,
    batch and statistics, which gives new ones too.
    """
    optimizer = optimizer or optax.adamw(1e-3)

    def train_step(state: Any, batch: Any) -> Any:
        parameters, moments, stats = state
        if stats is None:
            value, grads = jax.value_and_grad(loss)(parameters, batch)
        else:
            (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(
                parameters, batch, stats
            )
        changes, moments = optimizer.update(grads, moments, parameters)
        return (optax.apply_updates(parameters, changes), moments, stats), value

    leaves = jax.tree_util.tree_leaves(parameters)
    known = not isinstance(leaves[0], jax.ShapeDtypeStruct)
    init = optimizer.init if known else partial(jax.eval_shape, optimizer.init)
    return Step(train_step, ((parameters, init(parameters), stats), batch))


def normal(seed: int, *shape: int) -> Any:
    return jnp.asarray(normal_numbers(seed, shape), jnp.float32)


def filled(structs: Any) -> Any:
    """Returns a tree of the same shapes as `structs`, with random numbers."""
    leaves, tree = jax.tree_util.tree_flatten(structs)
    found = [normal(100 + i, *leaf.shape) for i, leaf in enumerate(leaves)]
    return jax.tree_util.tree_unflatten(tree, found)


@cache
def mlp() -> Step:
    def loss(p: Any, batch: Any) -> Any:
        x, y = batch
        return jnp.mean((jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] - y) ** 2)

    p = {"w1": normal(1, 16, 64), "b1": normal(2, 64), "w2": normal(3, 64, 16)}
    batch = normal(4, 8, 16), normal(5, 8, 16)
    return step_of(loss, p, batch, optax.sgd(0.1))


@cache
def dropout() -> Step:
    """An MLP with dropout and noise, whose key is a part of the state."""

    def loss(p: Any, batch: Any, key: Any) -> Any:
        key, masks, noise = jax.random.split(key, 3)
        x, y = batch
        x = x + 0.01 * jax.random.normal(noise, x.shape)
        hidden = jax.nn.relu(x @ p["w1"])
        kept = jax.random.bernoulli(masks, 0.9, hidden.shape)
        hidden = jnp.where(kept, hidden / 0.9, 0)
        return jnp.mean((hidden @ p["w2"] - y) ** 2), key

    p = {"w1": normal(1, 16, 64), "w2": normal(3, 64, 16)}
    batch = normal(4, 8, 16), normal(5, 8, 16)
    return step_of(loss, p, batch, optax.sgd(0.1), jax.random.PRNGKey(7))


def _split(x: Any) -> Any:
    """
    Returns activations [batch, ...], split over the axis d of the mesh of
    `jax.set_mesh`, if one is set. XLA else splits them as it likes.
    """
    axes = jax.sharding.get_abstract_mesh().axis_names
    if "d" not in axes:
        return x
    return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec("d"))


constrains_more: ContextVar[bool] = ContextVar("constrains_more", default=False)
"""
Whether values are split over d, and over nothing else, that XLA else splits as it likes:
the results of norms, and the rows that experts take and give.
"""


def _split_more(x: Any, dim: int = 0) -> Any:
    """Returns activations, split over d along `dim`, if `constrains_more` says so."""
    axes = jax.sharding.get_abstract_mesh().axis_names
    if not constrains_more.get() or "d" not in axes:
        return x
    spec = jax.sharding.PartitionSpec(*[None] * dim, "d")
    return jax.lax.with_sharding_constraint(x, spec)


def _norm(x: Any, g: Any, b: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g + b


def _attention(p: Any, x: Any, heads: int) -> Any:
    batch, seq, width = x.shape
    q, k, v = ((x @ p[n]).reshape(batch, seq, heads, -1) for n in ("wq", "wk", "wv"))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(width // heads)
    scores = jnp.where(jnp.tril(jnp.ones((seq, seq), bool)), scores, -1e9)
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return out.reshape(batch, seq, width) @ p["wo"]


def _gpt_layer(p: Any, x: Any) -> Any:
    x = _split(x + _attention(p, _norm(x, p["g1"], p["b1"]), 4))
    return _split(x + jax.nn.gelu(_norm(x, p["g2"], p["b2"]) @ p["w1"]) @ p["w2"])


def _language_loss(layers: Callable[..., Any]) -> Callable[..., Any]:
    def loss(p: Any, batch: Any) -> Any:
        ids, labels = batch
        x = layers(p["layers"], _split(p["wte"][ids] + p["wpe"]))
        logits = x @ p["wte"].T
        found = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return found.mean()

    return loss


def _tokens(vocab: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, vocab, (2, 8, 16))
    return jnp.asarray(ids, jnp.int32), jnp.asarray(labels, jnp.int32)


def _gpt_parameters(scan: bool) -> Any:
    def layer(*count: int) -> Any:
        square = {
            n: normal(i, *count, 64, 64) for i, n in enumerate(("wq", "wk", "wv", "wo"))
        }
        norms = {n: normal(9, *count, 64) for n in ("g1", "b1", "g2", "b2")}
        return {
            **square, **norms, "w1": normal(6, *count, 64, 256), "w2": normal(7, *count, 256, 64)
        }  # fmt: skip

    layers = layer(2) if scan else [layer(), layer()]
    return {"wte": normal(10, 128, 64), "wpe": normal(11, 16, 64), "layers": layers}


@cache
def gpt() -> Step:
    def layers(parameters: Any, x: Any) -> Any:
        for own in parameters:
            x = _gpt_layer(own, x)
        return x

    return step_of(_language_loss(layers), _gpt_parameters(False), _tokens(128))


@cache
def gpt_scan() -> Step:
    def layers(parameters: Any, x: Any) -> Any:
        layer = jax.checkpoint(lambda x, own: (_gpt_layer(own, x), None))
        return jax.lax.scan(layer, x, parameters)[0]

    return step_of(_language_loss(layers), _gpt_parameters(True), _tokens(128))


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = _split_more(nn.LayerNorm()(x))
        x = _split(x + nn.MultiHeadDotProductAttention(num_heads=4)(y, y))
        y = _split_more(nn.LayerNorm()(x))
        y = nn.gelu(nn.Dense(4 * self.width)(y))
        return _split(x + nn.Dense(self.width)(y))


class ViT(nn.Module):
    width: int = 32

    @nn.compact
    def __call__(self, x: Any) -> Any:
        width = self.width
        x = nn.Conv(width, (4, 4), (4, 4), "VALID")(x)
        x = x.reshape(x.shape[0], -1, width)
        first = self.param("first", nn.initializers.normal(), (1, 1, width))
        x = jnp.concatenate([jnp.broadcast_to(first, (x.shape[0], 1, width)), x], 1)
        shape = (1, x.shape[1], width)
        x = x + self.param("positions", nn.initializers.normal(), shape)
        for _ in range(2):
            x = Block(width)(x)
        return nn.Dense(16)(nn.LayerNorm()(x)[:, 0])


class ResNet(nn.Module):
    """
    A residual network with batch norm. With `of_products` each convolution looks at one
    pixel, and is written as a product.
    """

    width: int = 16
    of_products: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def norm(x: Any) -> Any:
            return nn.BatchNorm(use_running_average=False)(x)

        def conv(x: Any, width: int, size: int, step: int = 1) -> Any:
            if self.of_products:
                return nn.Dense(width, use_bias=False)(x[:, ::step, ::step])
            return nn.Conv(width, (size, size), (step, step), use_bias=False)(x)

        x = nn.relu(norm(conv(x, self.width, 3)))
        for width, step in ((self.width, 1), (2 * self.width, 2)):
            y = nn.relu(norm(conv(x, width, 3, step)))
            y = norm(conv(y, width, 3))
            if y.shape != x.shape:
                x = _split_more(conv(x, width, 1, step))
            x = _split(nn.relu(x + y))
        return nn.Dense(16)(x.mean((1, 2)))


def _images() -> tuple[Any, Any]:
    labels = np.random.default_rng(0).integers(0, 16, 8)
    return normal(1, 8, 16, 16, 3) * 10, jnp.asarray(labels, jnp.int32)


def _classes(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _vit(model: ViT, parameters: Any, batch: Any) -> Step:
    return step_of(lambda p, b: _classes(model.apply(p, b[0]), b[1]), parameters, batch)


@cache
def vit() -> Step:
    model, batch = ViT(), _images()
    return _vit(model, filled(_shapes(model, batch)), batch)


def _shapes(model: Any, batch: Any) -> Any:
    return jax.eval_shape(model.init, jax.random.key(0), batch[0])


def _resnet(model: ResNet, variables: Any, batch: Any) -> Step:
    def loss(p: Any, batch: Any, stats: Any) -> Any:
        logits, new = model.apply(
            {"params": p, "batch_stats": stats}, batch[0], mutable=["batch_stats"]
        )
        return _classes(logits, batch[1]), new["batch_stats"]

    optimizer = optax.sgd(0.1, momentum=0.9)
    stats = variables["batch_stats"]
    return step_of(loss, variables["params"], batch, optimizer, stats)


@cache
def resnet() -> Step:
    """A residual network with batch norm, whose statistics are a part of the state."""
    model, batch = ResNet(), _images()
    found = filled(_shapes(model, batch))
    stats = jax.tree_util.tree_map(jnp.abs, found["batch_stats"])
    return _resnet(model, {**found, "batch_stats": stats}, batch)


def _experts(p: Any, x: Any, count: int, capacity: int) -> Any:
    """
    Returns the outputs of two experts for each token, which go to the experts as MaxText's
    do: by a mask [batch, token, expert, place], with `capacity` places in each expert.
    Tokens without a place are dropped.
    """
    batch, tokens = x.shape[:2]
    weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
    weights = weights / weights.sum(-1, keepdims=True)
    mask = jax.nn.one_hot(chosen, count).reshape(batch, -1, count)
    place = jnp.cumsum(mask, 1) * mask
    kept = (place > 0) & (place <= capacity)
    slots = jax.nn.one_hot(place.astype(jnp.int32) - 1, capacity) * kept[..., None]
    slots = slots.reshape(batch, tokens, 2, count, capacity)
    own = _split_more(jnp.einsum("bsm,bsec->ebcm", x, slots.sum(2)), 1)
    gate = jax.nn.silu(jnp.einsum("ebcm,emf->ebcf", own, p["gate"]))
    h = gate * jnp.einsum("ebcm,emf->ebcf", own, p["up"])
    out = _split_more(jnp.einsum("ebcf,efm->ebcm", h, p["down"]), 1)
    return jnp.einsum("ebcm,bsec->bsm", out, (slots * weights[..., None, None]).sum(2))


@cache
def moe() -> Step:
    """Mixtral: attention, and two of eight experts for each token."""

    def layers(p: Any, x: Any) -> Any:
        x = _split(x + _attention(p, x, 4))
        return _split(x + _experts(p, x, 8, 6))

    own = {n: normal(i, 64, 64) for i, n in enumerate(("wq", "wk", "wv", "wo"))}
    own |= {"router": normal(5, 64, 8), "gate": normal(6, 8, 64, 96)}
    own |= {"up": normal(7, 8, 64, 96), "down": normal(8, 8, 96, 64)}
    p = {"wte": normal(10, 128, 64), "wpe": normal(11, 16, 64), "layers": own}
    return step_of(_language_loss(layers), p, _tokens(128))


MODELS = {f.__name__: f for f in (mlp, gpt, gpt_scan, vit, resnet, moe)}


def usual(name: str) -> Step:
    """Returns a step of a usual size, with shapes instead of values."""
    if name in ("vit", "resnet", "resnet of products"):
        shape = jax.ShapeDtypeStruct
        batch = shape((128, 32, 32, 3), jnp.float32), shape((128,), jnp.int32)
        if name == "vit":
            return _vit(ViT(512), _shapes(ViT(512), batch), batch)
        model = ResNet(128, name != "resnet")
        return _resnet(model, _shapes(model, batch), batch)
    state, batch = MODELS[name]().args
    larger = {"mlp": {16: 1024, 64: 4096}}.get(
        name, {16: 512, 64: 1024, 96: 2048, 128: 8192, 256: 4096}
    )

    def of(leaf: Any, sizes: dict[int, int]) -> Any:
        shape = [sizes.get(size, size) for size in leaf.shape]
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    state = jax.tree_util.tree_map(lambda leaf: of(leaf, larger), state)
    rows = larger | {8: 4096 if name == "mlp" else 32}
    batch = jax.tree_util.tree_map(lambda leaf: of(leaf, rows), batch)
    return Step(MODELS[name]().function, (state, batch))
