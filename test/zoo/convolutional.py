"""Models of images as torchvision and timm have them, made small."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from support.torch_models import Vgg19, WideResnet
from torch import Tensor, nn

from zoo.model import ZooModel, family, images


def _convolution(
    given: int, width: int, size: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Returns a convolution that keeps the size at stride 1, with its norm and slope."""
    return nn.Sequential(
        nn.Conv2d(given, width, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )


def _pooled(features: nn.Module, width: int) -> nn.Sequential:
    """Returns a classifier of four classes on features of that width."""
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(features, pool, nn.Flatten(), nn.Linear(width, 4))


def _of_image(module: nn.Module, size: int = 16) -> ZooModel:
    return ZooModel(module, {"input": images(size)})


@family("torchvision-like", "wide-resnet")
def wide_resnet() -> ZooModel:
    return _of_image(WideResnet([1, 1, 1, 1], 4, 2, 4), 64)


@family("torchvision-like")
def vgg() -> ZooModel:
    return _of_image(Vgg19(4, 16), 32)


class _DenseLayer(nn.Module):
    """A layer whose result is put beside what it was given."""

    def __init__(self, given: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = (
            nn.BatchNorm2d(given),
            nn.Conv2d(given, 2 * growth, 1, bias=False),
        )
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(h)))], 1)


@family("torchvision-like")
def densenet() -> ZooModel:
    halved = nn.Sequential(nn.Conv2d(16, 8, 1), nn.AvgPool2d(2))
    layers = [nn.Conv2d(3, 8, 3, 2, 1), _DenseLayer(8, 4), _DenseLayer(12, 4), halved]
    layers += [_DenseLayer(8, 4), _DenseLayer(12, 4)]
    return _of_image(_pooled(nn.Sequential(*layers), 16))


class _Inception(nn.Module):
    """Four branches side by side."""

    def __init__(self, given: int) -> None:
        super().__init__()
        self.branch1 = _convolution(given, 4, 1)
        self.branch2 = nn.Sequential(_convolution(given, 4, 1), _convolution(4, 4))
        self.branch3 = nn.Sequential(_convolution(given, 4, 1), _convolution(4, 4, 5))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), _convolution(given, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return torch.cat([branch(x) for branch in branches], 1)


@family("torchvision-like")
def googlenet() -> ZooModel:
    first = nn.Sequential(_convolution(3, 8, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True))
    return _of_image(_pooled(nn.Sequential(first, _Inception(8), _Inception(16)), 16))


class _Squeeze(nn.Module):
    """Channels are weighed by what all pixels of them say together."""

    def __init__(self, width: int, gate: nn.Module) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.fc2(F.relu(self.fc1(self.pool(x)))))


class _InvertedResidual(nn.Module):
    """A wide convolution of single channels between two narrow ones."""

    def __init__(self, width: int, slope: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        wide = 2 * width
        self.layers = nn.Sequential(
            nn.Conv2d(width, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            slope,
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            slope,
            _Squeeze(wide, gate),
            nn.Conv2d(wide, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _mobile(slope: nn.Module, gate: nn.Module) -> ZooModel:
    blocks = (_InvertedResidual(8, slope, gate) for _ in range(2))
    return _of_image(_pooled(nn.Sequential(_convolution(3, 8, 3, 2), *blocks), 8))


@family("torchvision-like", "mobilenet-v3")
def mobilenet_v3() -> ZooModel:
    return _mobile(nn.Hardswish(), nn.Hardsigmoid())


@family("torchvision-like")
def efficientnet() -> ZooModel:
    return _mobile(nn.SiLU(), nn.Sigmoid())


class _Shuffle(nn.Module):
    """Half of the channels pass, half are computed, and the two are mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            _convolution(half, half, 1), _convolution(half, half, 3, groups=half)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, 1)
        x = torch.cat([kept, self.branch(changed)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


@family("torchvision-like")
def shufflenet() -> ZooModel:
    layers = nn.Sequential(_convolution(3, 8, 3, 2), _Shuffle(8), _Shuffle(8))
    return _of_image(_pooled(layers, 8))


class _Fire(nn.Module):
    """Few channels that become many in two ways."""

    def __init__(self, given: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(given, 4, 1)
        self.one, self.three = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


@family("torchvision-like")
def squeezenet() -> ZooModel:
    layers = [nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)]
    layers += [_Fire(8), _Fire(16), nn.Conv2d(16, 4, 1), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return _of_image(nn.Sequential(*layers))


class _DeepLab(nn.Module):
    """Convolutions with holes of several sizes, and the mean of the image, resized."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            _convolution(3, 8, 3, 2), _convolution(8, 8, 3, 2)
        )
        self.holes = nn.ModuleList(
            nn.Conv2d(8, 4, 3, padding=rate, dilation=rate) for rate in (1, 2)
        )
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1))
        self.head = nn.Sequential(_convolution(12, 8), nn.Conv2d(8, 4, 1))

    def forward(self, input: Tensor) -> Tensor:
        h = self.backbone(input)
        size = h.shape[2:]
        mean = F.interpolate(self.pooled(h), size, mode="bilinear", align_corners=False)
        h = self.head(torch.cat([*(layer(h) for layer in self.holes), mean], 1))
        return F.interpolate(h, input.shape[2:], mode="bilinear", align_corners=False)


@family("torchvision-like")
def deeplab() -> ZooModel:
    return ZooModel(_DeepLab(), {"input": images(16)}, "mse")


class _Pyramid(nn.Module):
    """Features of several sizes, of which small ones are added to larger ones."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _convolution(a, b, 3, 2) for a, b in ((3, 4), (4, 8), (8, 16))
        )
        self.inner = nn.ModuleList(nn.Conv2d(n, 8, 1) for n in (4, 8, 16))
        self.outer = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, input: Tensor) -> Tensor:
        h, sides = input, list[Tensor]()
        for down, inner in zip(self.down, self.inner, strict=True):
            h = down(h)
            sides.append(inner(h))
        last = sides.pop()
        found = [last]
        while sides:
            side = sides.pop()
            last = side + F.interpolate(last, side.shape[2:], mode="nearest")
            found.append(last)
        means = [o(f).mean((2, 3)) for o, f in zip(self.outer, found, strict=True)]
        return self.head(means[0] + means[1] + means[2])


@family("torchvision-like", "feature-pyramid")
def feature_pyramid() -> ZooModel:
    return _of_image(_Pyramid())


class _Mixer(nn.Module):
    """Two perceptrons, one over patches and one over channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(
            nn.Linear(patches, 8), nn.GELU(), nn.Linear(8, patches)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class _MixerModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.Sequential(_Mixer(16, 16), _Mixer(16, 16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, input: Tensor) -> Tensor:
        h = self.stem(input).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(h)).mean(1))


@family("timm-like", "mlp-mixer")
def mixer() -> ZooModel:
    return _of_image(_MixerModel())


class _RelativeAttention(nn.Module):
    """
    Attention over pixels with a learned number for each offset, which is taken out of a
    table by the strides of memory, as CoAtNet in timm does.
    """

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.zeros(heads, 2 * size - 1, 2 * size - 1))

    def bias(self) -> Tensor:
        """Returns the bias [heads, pixels, pixels]: entry (i - j) of the table."""
        n, wide = self.size, 2 * self.size - 1
        shape, strides = (self.heads, n, n, n, n), (wide * wide, wide, 1, wide, 1)
        windows = self.table.as_strided(shape, strides)
        return windows.flip(1, 2).reshape(self.heads, n * n, n * n)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(tokens)).chunk(3, -1)
        q, k, v = (
            part.view(n, h * w, self.heads, c // self.heads).transpose(1, 2)
            for part in (q, k, v)
        )
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias())
        found = self.out(found.transpose(1, 2).reshape(n, h * w, c))
        return x + found.transpose(1, 2).reshape(n, c, h, w)


@family("timm-like")
def coatnet() -> ZooModel:
    layers = [_convolution(3, 16, 3, 2), _InvertedResidual(16, nn.SiLU(), nn.Sigmoid())]
    layers += [nn.AvgPool2d(2), _RelativeAttention(16, 4, 4)]
    return _of_image(_pooled(nn.Sequential(*layers), 16))
