"""
Floating-point operations of training, by simulation, against closed forms: F2 and F3
(Narayanan et al. 2021, appendix), F4 and F5 (Korthikanti et al. 2022, appendix A).

The sizes are those of the papers; simulating them costs no more than small ones.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from closed_forms.towers import (
    Sizes,
    distributed,
    flops,
    on_each_device,
    per_layer,
    post_norm,
    tower,
    training_step,
)

GPT3 = Sizes(h=12288, a=96, b=1, s=2048)
MT_NLG = Sizes(h=20480, a=128, b=1, s=2048)


def forward_of_layer(x: Sizes) -> int:
    """24 B s h^2 (1 + s / (6 h))."""
    return 24 * x.b * x.s * x.h**2 + 4 * x.b * x.s**2 * x.h


@pytest.mark.parametrize("x", [GPT3, MT_NLG], ids=["GPT-3", "MT-NLG"])
def test_f2_flops_of_a_layer(x: Sizes) -> None:
    """Forward 24 B s h^2 (1 + s / (6 h)), backward twice that."""
    few, more = (on_each_device(flops, distributed(tower(n, x))) for n in (1, 2))
    forward = forward_of_layer(x)
    assert more - few == forward
    assert per_layer(flops, x) == 3 * forward
    if x is GPT3:
        assert forward == 7_627_861_917_696


def test_f3_flops_of_an_iteration() -> None:
    """
    72 B s l h^2 (1 + s / (6 h) + V / (12 l h)), for B = 2304, l = 80, V = 51200; with
    full recomputation 96 B s l h^2 (1 + s / (6 h) + V / (16 l h)), if every product of a
    layer is computed again: see F4.
    """
    x = Sizes(h=12288, a=96, b=2304, s=2048, v=51200)
    layers = 80
    model = 3 * (layers * forward_of_layer(x) + 2 * x.b * x.s * x.h * x.v)
    hardware = model + layers * forward_of_layer(x)
    assert model == pytest.approx(4.2357146143791503e18, rel=1e-15)
    assert hardware == pytest.approx(5.641682123048877e18, rel=1e-15)
    step = training_step(tower(layers, x))
    assert on_each_device(flops, distributed(step)) == model
    step = training_step(tower(layers, x, change=post_norm))
    assert on_each_device(flops, distributed(step, checkpoint="full")) == hardware


def test_f4_full_recomputation() -> None:
    """
    Recomputing a layer computes its forward twice: 4 / 3 of the operations. That is so
    where its last op needs the products before it, as a norm behind them does. In GPT the
    last op adds the MLP's product to its input; no gradient needs that product, and it is
    not computed again: 8 B s h^2 less. `whole` computes it nevertheless.
    """
    x = GPT3
    model = per_layer(flops, x, change=post_norm)
    assert model == 3 * forward_of_layer(x)
    assert per_layer(flops, x, change=post_norm, checkpoint="full") / model == 4 / 3
    last = 8 * x.b * x.s * x.h**2
    found = per_layer(flops, x, checkpoint="full")
    assert found == 4 * forward_of_layer(x) - last
    assert per_layer(flops, x, checkpoint="whole") == 4 * forward_of_layer(x)


@pytest.mark.parametrize(
    ("x", "published"),
    [(GPT3, 0.027777777777777776), (MT_NLG, 0.016666666666666666)],
    ids=["GPT-3", "MT-NLG"],
)
def test_f5_selective_recomputation(x: Sizes, published: float) -> None:
    """
    One product of attention is computed again, that of queries and keys: 2 B s^2 h
    operations a layer, s / (36 h) of the 72 B s h^2 of its matrices.

    Korthikanti et al. give about s / (6 h) (equation 9), which is 12 B s^2 h: as much as
    the two products of attention take in forward (4) and backward (8) together. But only
    their forward is computed again, 4 B s^2 h or s / (18 h); and of that the second
    product, by the values, not either, since its result is the input of the next matrix
    and kept for that. So we find a sixth of what is published.
    """
    assert published == x.s / (6 * x.h)
    model = per_layer(flops, x)
    extra = per_layer(flops, x, checkpoint="selective") - model
    assert extra == 2 * x.b * x.s**2 * x.h
    matrices = 72 * x.b * x.s * x.h**2
    assert extra == pytest.approx(published / 6 * matrices, rel=1e-15)


def test_flops_are_shared_by_the_devices() -> None:
    """Data and tensor parallelism divide the work; nothing is done twice."""
    x = replace(GPT3, b=4)
    assert per_layer(flops, x, d=2, t=4) == 3 * forward_of_layer(x) / 8
