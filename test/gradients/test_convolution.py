"""Gradients of convolutions and pooling, against differences and torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradients.harness import GradientCase, check, normal
from torch.nn import functional as F


def conv(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], bias: bool = False, **how: Any
):
    """A convolution; `pads` are torch's F.pad of the input."""
    rank = len(x_shape) - 2
    pads = how.get("pads", [0] * 2 * rank)
    flat = [p for i in reversed(range(rank)) for p in (pads[i], pads[i + rank])]

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None):
        return getattr(F, f"conv{rank}d")(
            F.pad(x, flat),
            w,
            b,
            stride=how.get("strides", 1),
            dilation=how.get("dilations", 1),
            groups=how.get("group", 1),
        )

    inputs = [normal(*x_shape), normal(*w_shape, seed=1)]
    if bias:
        inputs.append(normal(w_shape[0], seed=2))
    label = f"{list(x_shape)}{how}".replace(" ", "")
    return GradientCase("Conv", inputs, how, torch=run, label=label)


def transposed(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    bias: bool = False,
    **how: Any,
):
    """A transposed convolution, and PyTorch's where it can say the same."""
    rank = len(x_shape) - 2
    pads = how.get("pads", [0] * 2 * rank)
    is_torch = pads[:rank] == pads[rank:] and not {"auto_pad", "output_shape"} & set(
        how
    )

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None):
        return getattr(F, f"conv_transpose{rank}d")(
            *(x, w, b),
            stride=how.get("strides", 1),
            padding=pads[:rank],
            output_padding=how.get("output_padding", 0),
            dilation=how.get("dilations", 1),
            groups=how.get("group", 1),
        )

    inputs = [normal(*x_shape), normal(*w_shape, seed=1)]
    if bias:
        inputs.append(normal(w_shape[1] * how.get("group", 1), seed=2))
    label = f"{list(x_shape)}{how}".replace(" ", "")
    torch_too = run if is_torch else None
    return GradientCase("ConvTranspose", inputs, how, torch=torch_too, label=label)


def pool(name: str, x_shape: tuple[int, ...], run: Any = None, **how: Any):
    label = f"{list(x_shape)}{how}".replace(" ", "")
    return GradientCase(name, [normal(*x_shape)], how, torch=run, label=label)


def space(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.dim()))


CASES = [
    conv((2, 3, 5, 4), (4, 3, 3, 2), bias=True),
    conv((2, 4, 6, 5), (6, 2, 3, 2), group=2, strides=[2, 1], pads=[1, 0, 1, 0]),
    conv((1, 2, 7, 6), (2, 2, 3, 2), dilations=[2, 3], pads=[0, 2, 1, 1]),
    conv((1, 3, 6), (3, 1, 3), group=3, strides=[3], pads=[1, 2]),
    conv((1, 2, 3, 4, 3), (2, 2, 2, 2, 1), strides=[1, 2, 2]),
    GradientCase(
        *("Conv", [normal(1, 2, 5, 6), normal(2, 2, 2, 3)]),
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        label="same",
    ),
    transposed((2, 3, 4, 3), (3, 4, 3, 2), bias=True),
    transposed((2, 4, 3, 3), (4, 3, 3, 2), group=2, strides=[2, 1], pads=[1, 0, 1, 0]),
    transposed((1, 2, 4), (2, 3, 3), strides=[3], pads=[1, 1], output_padding=[2]),
    transposed((1, 2, 3, 4), (2, 2, 3, 2), dilations=[2, 3], pads=[0, 1, 2, 0]),
    transposed((1, 2, 3, 2, 2), (2, 1, 2, 2, 1), strides=[1, 2, 2]),
    transposed((1, 2, 4, 3), (2, 2, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
    transposed((1, 2, 4, 3), (2, 2, 3, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
    transposed((1, 2, 4), (2, 2, 3), strides=[2], output_shape=[8]),
    pool(
        *("MaxPool", (2, 3, 6, 5)),
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0)),
        kernel_shape=[3, 2],
        strides=[2, 1],
        pads=[1, 0, 1, 0],
    ),
    pool(
        *("MaxPool", (1, 2, 6, 7)),
        lambda x: F.max_pool2d(x, 2, 3, 0, 2, ceil_mode=True),
        kernel_shape=[2, 2],
        strides=[3, 3],
        dilations=[2, 2],
        ceil_mode=1,
    ),
    pool("MaxPool", (1, 2, 7), kernel_shape=[3], strides=[2], auto_pad="SAME_UPPER"),
    pool(
        *("AveragePool", (2, 3, 6, 5)),
        lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), count_include_pad=False),
        kernel_shape=[3, 2],
        strides=[2, 1],
        pads=[1, 0, 1, 0],
    ),
    pool(
        *("AveragePool", (1, 2, 6, 7)),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
        count_include_pad=1,
    ),
    pool(
        *("AveragePool", (1, 2, 7)),
        kernel_shape=[3],
        dilations=[2],
        pads=[0, 1],
        count_include_pad=1,
    ),
    pool("GlobalAveragePool", (2, 3, 4, 2), lambda x: x.mean(space(x), keepdim=True)),
    pool("GlobalMaxPool", (2, 3, 4, 2), lambda x: x.amax(space(x), keepdim=True)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: GradientCase):
    check(case)


def test_equal_maxima_give_the_gradient_to_the_first():
    case = GradientCase(
        *("MaxPool", [normal(1, 1, 4, 4).round()]),
        {"kernel_shape": [3, 3], "strides": [1, 1]},
        torch=lambda x: F.max_pool2d(x, 3, 1),
        smooth=False,
    )
    check(case)
