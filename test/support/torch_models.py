"""PyTorch modules of the convolutional models that are built by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Bottleneck(nn.Module):
    def __init__(self, given: int, channels: int, factor: int, stride: int, first: int):
        super().__init__()
        narrow, wide = channels * first, channels * factor
        self.conv1 = nn.Conv2d(given, narrow, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.conv2 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(wide)
        self.conv3 = nn.Conv2d(wide, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.downsample = nn.Sequential()
        if stride > 1 or given != 4 * channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(given, 4 * channels, 1, stride, bias=False),
                nn.BatchNorm2d(4 * channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.relu(self.bn3(self.conv3(h)) + self.downsample(x))


class WideResnet(nn.Module):
    """
    A ResNet of bottleneck blocks, whose 3 x 3 convolutions are wider by a factor, and
    the convolutions before them by another one.
    """

    def __init__(
        self,
        stages: Sequence[int],
        channels: int,
        factor: int,
        classes: int,
        first: int = 1,
    ):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        given = channels
        for index, blocks in enumerate(stages):
            inside = channels * 2**index
            layer = nn.Sequential()
            for block in range(blocks):
                stride = 2 if index and not block else 1
                layer.append(_Bottleneck(given, inside, factor, stride, first))
                given = 4 * inside
            self.add_module(f"layer{index + 1}", layer)
        self.fc = nn.Linear(given, classes)

    def forward(self, input: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.bn1(self.conv1(input))), 3, 2, 1)
        for index in range(1, 5):
            h = self.get_submodule(f"layer{index}")(h)
        return self.fc(h.mean((2, 3)))


class Vgg19(nn.Module):
    """VGG19 on pictures of 32 pixels, without dropout."""

    def __init__(self, classes: int, width: int):
        super().__init__()
        features: list[nn.Module] = []
        given = 3
        for channels, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(count):
                features += [nn.Conv2d(given, channels, 3, padding=1), nn.ReLU()]
                given = channels
            features.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Linear(512, width),
            nn.ReLU(),
            nn.Identity(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Identity(),
            nn.Linear(width, classes),
        )

    def forward(self, input: Tensor) -> Tensor:
        return self.classifier(self.features(input).flatten(1))


class _Residual(nn.Module):
    def __init__(self, given: int, channels: int, time: int, groups: int):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, given)
        self.conv1 = nn.Conv2d(given, channels, 3, padding=1)
        self.time_emb_proj = nn.Linear(time, channels)
        self.norm2 = nn.GroupNorm(groups, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv_shortcut = nn.Identity()
        if given != channels:
            self.conv_shortcut = nn.Conv2d(given, channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time_emb_proj(F.silu(time))[:, :, None, None]
        return self.conv_shortcut(x) + self.conv2(F.silu(self.norm2(h)))


class _PixelAttention(nn.Module):
    def __init__(self, channels: int, groups: int):
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels)
        self.to_q, self.to_k, self.to_v = (
            nn.Linear(channels, channels) for _ in range(3)
        )
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.group_norm(x).flatten(2).transpose(1, 2)
        h = F.scaled_dot_product_attention(self.to_q(h), self.to_k(h), self.to_v(h))
        return x + self.to_out[0](h).transpose(1, 2).reshape(x.shape)


class _Level(nn.Module):
    """The residual blocks of a level, each with attention where asked for."""

    def __init__(
        self, given: Sequence[int], channels: int, time: int, groups: int, attends: bool
    ):
        super().__init__()
        self.resnets = nn.ModuleList(
            _Residual(g, channels, time, groups) for g in given
        )
        count = len(given) if attends else 0
        self.attentions = nn.ModuleList(
            _PixelAttention(channels, groups) for _ in range(count)
        )

    def block(self, index: int, x: Tensor, time: Tensor) -> Tensor:
        x = self.resnets[index](x, time)
        return self.attentions[index](x) if self.attentions else x


class DenoisingUnet(nn.Module):
    """The U-Net of DDPM on pictures of 8 pixels, with the names of diffusers."""

    def __init__(
        self,
        channels: int,
        multipliers: Sequence[int],
        blocks: int,
        attention_at: int,
        groups: int,
    ):
        super().__init__()
        self.channels, time, side = channels, 4 * channels, 8
        self.conv_in = nn.Conv2d(3, channels, 3, padding=1)
        self.time_embedding = nn.Module()
        self.time_embedding.linear_1 = nn.Linear(channels, time)
        self.time_embedding.linear_2 = nn.Linear(time, time)
        self.down_blocks, self.up_blocks = nn.ModuleList(), nn.ModuleList()
        passed, given = [channels], channels
        last = len(multipliers) - 1
        for index, multiplier in enumerate(multipliers):
            width = channels * multiplier
            inputs = [given] + [width] * (blocks - 1)
            level = _Level(inputs, width, time, groups, side == attention_at)
            passed += [width] * blocks
            if index < last:
                level.downsamplers = nn.ModuleList([nn.Module()])
                level.downsamplers[0].conv = nn.Conv2d(width, width, 3, 2, 1)
                passed.append(width)
                side //= 2
            self.down_blocks.append(level)
            given = width
        self.mid_block = _Level([given, given], given, time, groups, True)
        del self.mid_block.attentions[1]
        for index, multiplier in enumerate(reversed(multipliers)):
            width, inputs = channels * multiplier, list[int]()
            for _ in range(blocks + 1):
                inputs.append(given + passed.pop())
                given = width
            level = _Level(inputs, width, time, groups, side == attention_at)
            if index < last:
                level.upsamplers = nn.ModuleList([nn.Module()])
                level.upsamplers[0].conv = nn.Conv2d(width, width, 3, padding=1)
                side *= 2
            self.up_blocks.append(level)
        self.conv_norm_out = nn.GroupNorm(groups, channels)
        self.conv_out = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        half = self.channels // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half) / half)
        angles = timestep[:, None] * rates
        time = self.time_embedding.linear_1(torch.cat([angles.sin(), angles.cos()], 1))
        time = self.time_embedding.linear_2(F.silu(time))
        h = self.conv_in(sample)
        passed = [h]
        for level in self.down_blocks:
            for index in range(len(level.resnets)):
                h = level.block(index, h, time)
                passed.append(h)
            if hasattr(level, "downsamplers"):
                h = level.downsamplers[0].conv(h)
                passed.append(h)
        h = self.mid_block.resnets[0](h, time)
        h = self.mid_block.resnets[1](self.mid_block.attentions[0](h), time)
        for level in self.up_blocks:
            for index in range(len(level.resnets)):
                h = level.block(index, torch.cat([h, passed.pop()], 1), time)
            if hasattr(level, "upsamplers"):
                h = level.upsamplers[0].conv(F.interpolate(h, scale_factor=2))
        return self.conv_out(F.silu(self.conv_norm_out(h)))
