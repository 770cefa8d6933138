"""Each conversion of an op, next to JAX: the imported program gives jit's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from support.jax_functions import same_as_jit

from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.jax import import_function


def floats(rng: np.random.Generator, *shape: int) -> Any:
    return jnp.asarray(rng.uniform(0.2, 2, shape), jnp.float32)


@pytest.fixture(params=range(3))
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(request.param)


def sizes(rng: np.random.Generator, count: int) -> list[int]:
    return [int(n) for n in rng.integers(1, 6, count)]


UNARY = [
    jnp.abs, jnp.exp, jnp.log, jnp.sqrt, lax.rsqrt, jnp.tanh, jax.nn.sigmoid, jnp.sin,
    jnp.cos, jnp.floor, jnp.ceil, jnp.round, jnp.sign, jnp.expm1, jnp.log1p, lax.erf,
    jnp.isfinite, jnp.square, jnp.cbrt, jax.nn.gelu, jax.nn.silu, jax.nn.relu,
    jnp.negative, jax.nn.softplus, jnp.arctan, jnp.sinh, jnp.reciprocal,
]  # fmt: skip


@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_unary(function: Callable[..., Any], rng: np.random.Generator) -> None:
    same_as_jit(lambda x: function(x), floats(rng, *sizes(rng, 3)))


@pytest.mark.parametrize("function", [jnp.expm1, jnp.log1p], ids=lambda f: f.__name__)
def test_small_and_large_numbers(function: Callable[..., Any]) -> None:
    """Relative to the result: not the difference of two numbers that are near 1."""
    x = jnp.asarray([0, 1e-9, -1e-9, 3e-6, -2e-4, 0.5, 60, np.inf, -0.9], jnp.float32)
    traced = import_function(function, (x,))
    given = [np.asarray(x), *traced.program.weights.values()]
    [found] = run_program(traced.program.module, given)
    np.testing.assert_allclose(found, np.asarray(function(x)), rtol=2e-6, atol=0)


BINARY = [
    jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum, jnp.power,
    jnp.less, jnp.less_equal, jnp.equal, jnp.not_equal, jnp.greater, lax.rem,
    jnp.greater_equal, jnp.fmod,
]  # fmt: skip


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_binary(function: Callable[..., Any], rng: np.random.Generator) -> None:
    shape = sizes(rng, 3)
    same_as_jit(lambda x, y: function(x, y), floats(rng, *shape), floats(rng, *shape))


def test_integers_and_truth(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.integers(-9, 9, (4, 5)), jnp.int32)
    y = jnp.asarray(rng.integers(1, 9, (4, 5)), jnp.int32)

    def function(x: Any, y: Any) -> Any:
        odd = (x & 1) == (y & 1)
        return (
            lax.div(x, y), lax.rem(x, y), x | y, x ^ y, ~x, odd & (x > 0), odd | (y > 4),
            ~odd, odd.any(1), odd.all(0), jnp.where(odd, x, y), x.astype(jnp.float32),
            jnp.clip(x, -2, 3), (x.astype(jnp.uint32) >> 3), x.sum(), x.max(0),
        )  # fmt: skip

    same_as_jit(function, x, y)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod", "var"])
@pytest.mark.parametrize("axis", [0, 1, (0, 2), None])
def test_reductions(name: str, axis: Any, rng: np.random.Generator) -> None:
    same_as_jit(lambda x: getattr(x, name)(axis), floats(rng, *sizes(rng, 3)))


def test_reduction_of_a_broadcast(rng: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        wide = jnp.broadcast_to(x[:, None], (3, 4, 5))
        return wide.sum((0, 1)), wide.max(1), wide.prod(2), wide.transpose(2, 0, 1)

    same_as_jit(function, floats(rng, 3, 5))


def test_positions_of_extremes(rng: np.random.Generator) -> None:
    x = floats(rng, 4, 7)
    same_as_jit(lambda x: (x.argmax(1), x.argmin(0), jax.nn.one_hot(x.argmax(1), 7)), x)


def test_sorting(rng: np.random.Generator) -> None:
    x = floats(rng, 4, 9)
    same_as_jit(lambda x: (jnp.sort(x), jnp.argsort(x, 0), lax.top_k(x, 3)), x)


EQUATIONS = [
    ("ab,bc->ac", 4), ("ab,cb->ac", 4), ("ba,bc->ac", 4), ("nab,nbc->nac", 5),
    ("btd,df->btf", 5), ("bthd,bshd->bhts", 6), ("bhts,bshd->bthd", 6), ("a,b->ab", 4),
    ("ab,ab->", 4), ("abc,c->ab", 4),
]  # fmt: skip


@pytest.mark.parametrize("equation", [e for e, _ in EQUATIONS])
def test_products(equation: str, rng: np.random.Generator) -> None:
    size = {name: int(rng.integers(1, 6)) for name in equation if name.isalpha()}
    left, right = equation.split("->")[0].split(",")
    same_as_jit(
        lambda x, y: jnp.einsum(equation, x, y),
        floats(rng, *[size[n] for n in left]),
        floats(rng, *[size[n] for n in right]),
    )


def test_shapes(rng: np.random.Generator) -> None:
    def function(x: Any, y: Any) -> Any:
        return (
            x.reshape(-1), x.transpose(2, 0, 1), x[:, None, ..., None], x[1:, ::2, :-1],
            jnp.concatenate([x, y], 1), jnp.flip(x, (0, 2)), jnp.pad(x, ((0, 1), (2, 0), (0, 0))),
            lax.pad(x, 1.0, ((1, -1, 0), (0, 2, 1), (0, 0, 2))), jnp.tile(x, (1, 2, 1)),
            jnp.stack([x, x]), jnp.arange(5)[:, None] * jnp.arange(3), jnp.roll(x, 1, 1),
            jnp.tril(x), jnp.repeat(x, 2, 0), jnp.split(x, 2, 2), jnp.arange(100.0),
        )  # fmt: skip

    same_as_jit(function, floats(rng, 3, 4, 6), floats(rng, 3, 2, 6))


def test_look_ups(rng: np.random.Generator) -> None:
    table, rows = floats(rng, 7, 5), floats(rng, 3, 4, 5)
    ids = jnp.asarray(rng.integers(-9, 9, (3, 4)), jnp.int32)
    inside = ids % 7

    def function(table: Any, rows: Any, ids: Any, inside: Any) -> Any:
        return (
            table[inside], jnp.take(table, inside, 0, mode="clip"), table[:, inside % 5],
            jnp.take_along_axis(rows, inside[..., None] % 5, -1), table[inside, inside % 5],
            jnp.take_along_axis(rows, inside[:, :2, None] % 4, 1), table[ids],
            rows[jnp.arange(3), inside[:, 0] % 4], jnp.take(table, ids, 0, mode="wrap"),
        )  # fmt: skip

    same_as_jit(function, table, rows, ids, inside)


def test_gradients_of_look_ups(rng: np.random.Generator) -> None:
    table, rows = floats(rng, 7, 5), floats(rng, 3, 4, 5)
    ids = jnp.asarray(rng.integers(-9, 9, (3, 4)), jnp.int32)

    def function(table: Any, rows: Any, ids: Any) -> Any:
        inside = ids % 5
        return (
            (table[ids] ** 2).sum()
            + (jnp.take(table, inside, 0, mode="clip") ** 3).sum()
            + (jnp.take_along_axis(rows, inside[..., None], -1) ** 2).sum()
            + (table[inside, inside] ** 2).sum()
            + (table[:, inside] ** 2).sum()
            + (rows[jnp.arange(3), inside[:, 0] % 4] ** 2).sum()
        )

    same_as_jit(jax.grad(function, (0, 1)), table, rows, ids)


def test_updates(rng: np.random.Generator) -> None:
    x, y = floats(rng, 6, 5), floats(rng, 2, 5)
    ids = jnp.asarray([4, 9, 1], jnp.int32)

    def function(x: Any, y: Any, i: Any, ids: Any) -> Any:
        return (
            lax.dynamic_update_slice(x, y, (i, 0)), lax.dynamic_slice(x, (i, 1), (2, 3)),
            x.at[2].set(7.0), x.at[ids].add(1.0), x.at[ids].set(0.0),
            lax.dynamic_update_slice(x, y[:, :3], (i, i)),
        )  # fmt: skip

    start = jnp.asarray(rng.integers(0, 9), jnp.int32)
    try:
        same_as_jit(function, x, y, start, ids)
    except DistIRError as error:
        pytest.fail(str(error))


def test_convolutions(rng: np.random.Generator) -> None:
    x, kernel = floats(rng, 2, 8, 9, 4), floats(rng, 3, 3, 4, 6)

    def function(x: Any, kernel: Any) -> Any:
        def conv(strides: Any, padding: Any, **more: Any) -> Any:
            return lax.conv_general_dilated(
                x, kernel, strides, padding,
                dimension_numbers=("NHWC", "HWIO", "NHWC"), **more,
            )  # fmt: skip

        return (
            (conv((1, 1), "SAME") ** 2).sum() + (conv((2, 2), "SAME") ** 2).sum()
            + (conv((2, 1), "VALID", rhs_dilation=(1, 2)) ** 2).sum()
        )  # fmt: skip

    same_as_jit(jax.value_and_grad(function, (0, 1)), x, kernel, tolerance=1e-4)


def test_grouped_convolutions(rng: np.random.Generator) -> None:
    """A kernel's gradient has groups along the batch."""
    x, kernel = floats(rng, 2, 8, 9, 4), floats(rng, 3, 3, 2, 6)
    depthwise = floats(rng, 3, 3, 1, 8)

    def function(x: Any, *kernels: Any) -> Any:
        return sum(
            (
                lax.conv_general_dilated(
                    x, kernel, (1, 2), "SAME",
                    dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
                ) ** 2
            ).sum()
            for kernel, groups in zip(kernels, (2, 4), strict=True)
        )  # fmt: skip

    same_as_jit(
        jax.value_and_grad(function, (0, 1, 2)), x, kernel, depthwise, tolerance=1e-4
    )


def test_cumulative_sums(rng: np.random.Generator) -> None:
    """Those of integers too, and exactly: as averages they would be rounded."""
    x, n = floats(rng, 3, 7, 2), jnp.asarray(rng.integers(-9, 9, (5, 11)), jnp.int32)
    same_as_jit(
        lambda x, n: (
            jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True), jnp.cumsum(n, 1),
            jnp.cumsum((n % 3 == 0).astype(jnp.float32), 1).astype(jnp.int32),
        ),
        x, n,
    )  # fmt: skip


def test_gradients_of_pooling(rng: np.random.Generator) -> None:
    from flax import linen as nn

    def function(x: Any) -> Any:
        return (
            (nn.max_pool(x, (3, 3), (2, 2), "SAME") ** 2).sum()
            + (nn.max_pool(x, (2, 2), (2, 2)) ** 3).sum()
            + (nn.avg_pool(x, (3, 2), (1, 2), "SAME") ** 2).sum()
        )

    same_as_jit(jax.value_and_grad(function), floats(rng, 2, 8, 8, 3))


def test_pooling(rng: np.random.Generator) -> None:
    from flax import linen as nn

    x = floats(rng, 2, 8, 8, 3)
    same_as_jit(
        lambda x: (
            nn.avg_pool(x, (2, 2), (2, 2)),
            nn.max_pool(x, (3, 3), (2, 2), "SAME"),
        ),
        x,
    )


def test_loops(rng: np.random.Generator) -> None:
    weights, x = floats(rng, 4, 5, 5) * 0.2, floats(rng, 3, 5) * 0.2

    def function(weights: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            y = jnp.tanh(x @ w)
            return y, y.sum()

        last, sums = lax.scan(layer, x, weights)
        back, _ = lax.scan(layer, x, weights, reverse=True)
        count = lax.fori_loop(0, 3, lambda i, v: v * 2 + i, x)
        return (last * sums[:, None, None].sum()).sum() + back.sum() + count.sum()

    same_as_jit(jax.value_and_grad(function), weights, x)


def test_cumulative_products_and_extremes(rng: np.random.Generator) -> None:
    x = floats(rng, 5, 7)
    same_as_jit(lambda x: jnp.cumprod(x, 1), x)
    same_as_jit(jax.grad(lambda x: (jnp.cumprod(x, 0) ** 2).sum()), x)
    same_as_jit(lambda x: (lax.cummax(x, 1), lax.cummin(x, 0, reverse=True)), x)


def test_scatters_that_combine(rng: np.random.Generator) -> None:
    x, ids = floats(rng, 8, 3), jnp.asarray(rng.integers(0, 4, 8))
    same_as_jit(lambda ids: jnp.bincount(ids, length=5), ids)
    same_as_jit(lambda x, ids: jax.ops.segment_max(x, ids, 5), x, ids)
    same_as_jit(lambda x, ids: x.at[ids].min(0.5).at[ids[:3]].mul(2.0), x, ids)
    same_as_jit(lambda x: jnp.nonzero(x[:, 0] > 1, size=4)[0], x)


def test_halves_are_rounded_away_from_zero() -> None:
    x = jnp.asarray([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388609.0, -jnp.inf])
    same_as_jit(lax.round, x)
    same_as_jit(lambda x: jnp.floor_divide(x, 0.3), x[:6])


def test_a_loop_of_unknown_length_is_refused_with_its_line() -> None:
    def function(x: Any) -> Any:
        return lax.while_loop(lambda v: v.sum() < 10, lambda v: v * 2, x)

    with pytest.raises(DistIRError, match=r"while.*test_ops.py:\d+.*number of rounds"):
        import_function(function, (jnp.ones(3),))


def test_an_unknown_op_is_refused_with_its_line() -> None:
    with pytest.raises(DistIRError, match=r"cholesky.*test_ops.py:\d+.*not known"):
        import_function(lambda x: lax.linalg.cholesky(x), (jnp.eye(3),))


def complex_numbers(x: Any) -> Any:
    return (x + 1j * x).real


def eight_bits(x: Any) -> Any:
    return x.astype(jnp.float8_e4m3fn).astype(jnp.float32)


def printed(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def over_devices(x: Any) -> Any:
    spec = jax.sharding.PartitionSpec("a")
    mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    run = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=spec, out_specs=spec)
    return run(x)


def inside_flax(x: Any) -> Any:
    from flax import linen as nn

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return jnp.fft.fft(nn.LayerNorm()(x)).real

    return Layer().init_with_output(jax.random.key(0), x)[0]


@pytest.mark.parametrize(
    "function, advice",
    [
        (complex_numbers, "real and imaginary parts"),
        (eight_bits, "f8E4M3FN"),
        (printed, r"leave out callbacks, such as jax.debug.print"),
        (over_devices, "without shard_map"),
        (inside_flax, "matrix of the transform"),
        (lambda x: jnp.linalg.svd(x)[1], "pass the result as an argument"),
        (lambda x: jax.random.gamma(jax.random.key(0), 2.0, (3,)) + x, r"lax.scan"),
    ],
)
def test_refusals_name_the_line_and_what_to_do(
    function: Callable[..., Any], advice: str
) -> None:
    """Also for ops that a library makes, or a function that JAX lowers only once."""
    with pytest.raises(DistIRError, match=rf"at [^ ]*/test_ops.py:\d+ .*{advice}"):
        import_function(function, (jnp.ones((8, 3)),))


def test_arguments_that_are_no_arrays_are_refused() -> None:
    with pytest.raises(DistIRError, match=r"x\['f'\] is no array but a function"):
        import_function(lambda x: x["a"], ({"a": jnp.ones(3), "f": floats},))


def test_ragged_dot() -> None:
    """The rows of each group are multiplied by the group's own matrix."""
    rng = np.random.default_rng(0)
    rows, weights = floats(rng, 8, 3), floats(rng, 3, 3, 5)
    same_as_jit(lax.ragged_dot, rows, weights, jnp.asarray([3, 0, 5], jnp.int32))
