"""The U-Net of diffusion models, which predicts the noise in an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp, f32, i64
from xdsl.ir import SSAValue

from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.function_builder import check_sizes, element_type
from distir.frontends.models.module_builder import ModuleBuilder
from distir.program import ENTRY

_EPSILON = 1e-5
_LONGEST = 10000
"""The longest wavelength of the sines and cosines of a time, in units of 2 pi steps."""


def build_unet(
    batch: int,
    image: int = 32,
    channels: int = 128,
    dtype: str = "f32",
    *,
    multipliers: Sequence[int] = (1, 2, 2, 2),
    blocks: int = 2,
    attention_at: int = 16,
    groups: int = 32,
) -> ModuleOp:
    """
    Returns the forward pass of a denoising U-Net, from noisy images [batch, 3, image,
    image] and their times [batch] to the noise in the images.

    Each number in `multipliers` makes a level with that many times `channels` channels.
    A level has `blocks` residual blocks on the way down and one more on the way up.
    Each level halves the sides of the image. Attention follows each block on images of
    `attention_at` pixels a side. Group norms have `groups` groups.

    The defaults are the model of DDPM ("Denoising Diffusion Probabilistic Models",
    2020) for CIFAR-10. Parameters have the names and shapes of UNet2DModel in Hugging
    Face's diffusers. Raises DistIRError if a size is not positive or is not a multiple
    of a number that must divide it.
    """
    check_sizes(batch=batch, image=image, channels=channels, blocks=blocks)
    halved = 2 ** (len(multipliers) - 1)
    if image % halved or channels % groups or not multipliers:
        raise DistIRError(
            f"a U-Net of {len(multipliers)} levels on pictures of {image} pixels with "
            f"{channels} channels in {groups} groups: the pictures need a multiple of "
            f"{halved} pixels, the channels one of the groups"
        )
    main = ModuleBuilder(element_type(dtype))
    shape = (batch, 3, image, image)
    sample = main.argument("sample", shape, role="input")
    times = main.argument("timestep", (batch,), role="input", element=i64)
    net = _Unet(main, _time(main, times, channels), groups, attention_at)

    h = main.convolution("conv_in", sample, channels, 3, padding=1, bias=True)
    passed = [h]
    for level, multiplier in enumerate(multipliers):
        name = f"down_blocks.{level}"
        for index in range(blocks):
            h = net.block(name, index, h, channels * multiplier)
            passed.append(h)
        if level < len(multipliers) - 1:
            conv, width = f"{name}.downsamplers.0.conv", channels * multiplier
            h = main.convolution(conv, h, width, 3, stride=2, padding=1, bias=True)
            passed.append(h)
    width = channels * multipliers[-1]
    h = net.residual("mid_block.resnets.0", h, width)
    h = net.attend("mid_block.attentions.0", h)
    h = net.residual("mid_block.resnets.1", h, width)
    for level, multiplier in enumerate(reversed(multipliers)):
        name = f"up_blocks.{level}"
        for index in range(blocks + 1):
            both = [h, passed.pop()]
            size, first, *sides = shape_of(h)
            joined = (size, first + shape_of(both[1])[1], *sides)
            h = main.at(name).op("Concat", both, joined, axis=1)
            h = net.block(name, index, h, channels * multiplier)
        if level < len(multipliers) - 1:
            h = net.enlarge(f"{name}.upsamplers.0", h)
    h = main.group_norm("conv_norm_out", h, groups, _EPSILON)
    h = main.at("conv_act").elementwise("Swish", h)
    noise = main.convolution("conv_out", h, 3, 3, padding=1, bias=True)
    return ModuleOp([main.finish(ENTRY, [noise], ["noise"])])


class _Unet:
    """
    Builds the modules of a U-Net. `time` is the embedding of the time of each image.
    """

    def __init__(
        self, b: ModuleBuilder, time: SSAValue, groups: int, attention_at: int
    ):
        self.b, self.time = b, time
        self.groups, self.attention_at = groups, attention_at

    def block(self, name: str, index: int, x: SSAValue, channels: int) -> SSAValue:
        """
        Adds a residual block. If the image has `attention_at` pixels a side, attention
        follows.
        """
        h = self.residual(f"{name}.resnets.{index}", x, channels)
        if shape_of(h)[-1] == self.attention_at:
            h = self.attend(f"{name}.attentions.{index}", h)
        return h

    def residual(self, name: str, x: SSAValue, channels: int) -> SSAValue:
        """
        Returns `x` plus two convolutions, each after a norm. A projection of the time
        embedding is added between the convolutions.
        """
        b, batch = self.b, shape_of(x)[0]
        h = self._norm(f"{name}.norm1", x)
        h = b.at(f"{name}.nonlinearity").elementwise("Swish", h)
        h = b.convolution(f"{name}.conv1", h, channels, 3, padding=1, bias=True)
        time = b.at(f"{name}.nonlinearity").elementwise("Swish", self.time)
        time = b.linear(f"{name}.time_emb_proj", time, channels)
        b.at(name)
        time = b.op("Unsqueeze", [time, b.integers(2, 3)], (batch, channels, 1, 1))
        h = self._norm(f"{name}.norm2", b.elementwise("Add", h, time))
        h = b.at(f"{name}.nonlinearity").elementwise("Swish", h)
        h = b.convolution(f"{name}.conv2", h, channels, 3, padding=1, bias=True)
        if shape_of(x)[1] != channels:
            x = b.convolution(f"{name}.conv_shortcut", x, channels, 1, bias=True)
        return b.at(name).elementwise("Add", x, h)

    def attend(self, name: str, x: SSAValue) -> SSAValue:
        """Returns `x` plus the attention of its pixels to each other, with one head."""
        b, (batch, channels, height, width) = self.b, shape_of(x)
        h = self._norm(f"{name}.group_norm", x)
        h = b.at(name).reshape(h, (batch, channels, height * width))
        h = b.transpose(h, 0, 2, 1)
        parts = [b.linear(f"{name}.to_{part}", h, channels) for part in "qkv"]
        q, k, v = (b.at(name).heads(part, channels) for part in parts)
        h = b.merge_heads(b.attention(q, k, v))
        h = b.linear(f"{name}.to_out.0", h, channels)
        h = b.at(name).transpose(h, 0, 2, 1)
        h = b.reshape(h, (batch, channels, height, width))
        return b.elementwise("Add", x, h)

    def enlarge(self, name: str, x: SSAValue) -> SSAValue:
        """
        Returns the image `x` with doubled sides: each pixel is repeated in a square of
        four, and a convolution follows.
        """
        b, (batch, channels, *sides) = self.b, shape_of(x)
        scales = b.at(name).single([1, 1, 2, 2])
        sides = [2 * side for side in sides]
        h = b.op(
            "Resize",
            [x, None, scales],
            (batch, channels, *sides),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        return b.convolution(f"{name}.conv", h, channels, 3, padding=1, bias=True)

    def _norm(self, name: str, x: SSAValue) -> SSAValue:
        return self.b.group_norm(name, x, self.groups, _EPSILON)


def _time(b: ModuleBuilder, times: SSAValue, channels: int) -> SSAValue:
    """
    Returns an embedding for each time, [batch, 4 channels]: sines and cosines of the
    time, followed by an MLP.
    """
    b.at("time_proj")
    [batch], half = shape_of(times), channels // 2
    rates = np.exp(-math.log(_LONGEST) * np.arange(half) / half)
    one = b.single(1)
    steps = b.op("CastLike", [times, one], (batch,), f32)
    steps = b.op("Unsqueeze", [steps, b.integers(1)], (batch, 1), f32)
    angles = b.op("Mul", [steps, b.single(rates)], (batch, half), f32)
    waves = [b.op(name, [angles], (batch, half), f32) for name in ("Sin", "Cos")]
    h = b.op("Concat", waves, (batch, 2 * half), f32, axis=-1)
    if b.element != f32:
        like = b.constant(np.array(0, b.dtype))
        h = b.op("CastLike", [h, like], (batch, 2 * half))
    h = b.linear("time_embedding.linear_1", h, 4 * channels)
    h = b.at("time_embedding.act").elementwise("Swish", h)
    return b.linear("time_embedding.linear_2", h, 4 * channels)
