"""ResNets with bottleneck blocks, of any width."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from distir.dialects.tensors import shape_of
from distir.errors import one_of
from distir.frontends.models.function_builder import Layer, check_sizes, element_type
from distir.frontends.models.module_builder import ModuleBuilder
from distir.program import ENTRY

STAGES = {
    "50": (3, 4, 6, 3),
    "101": (3, 4, 23, 3),
    "152": (3, 8, 36, 3),
}
"""The number of blocks of each stage, by the number of layers with weights."""

Factors = tuple[int, int]
"""
The channels of the first two convolutions of a block, in multiples of the block's
channels.
"""


def build_wide_resnet(
    layers: int,
    channels: int,
    batch: int,
    image: int = 224,
    classes: int = 1000,
    dtype: str = "f32",
    *,
    width_factor: int = 1,
    trains: bool = False,
) -> ModuleOp:
    """
    Returns the forward pass of a ResNet with `layers` layers, from images [batch, 3,
    image, image] to logits [batch, classes]. Raises DistIRError if `layers` is not 50,
    101 or 152, or if one of the other sizes is not valid.

    There are four stages of bottleneck blocks (`build_resnet`). A block of the first
    stage has three convolutions: 1 x 1 to `channels` channels, 3 x 3 to `width_factor`
    times as many, and 1 x 1 to four times `channels`. Each further stage doubles the
    channels and halves the sides of the image.

    With 64 channels and a factor of 1 the model is torchvision's ResNet, with the same
    names. With a larger factor it is the wide ResNet that Alpa and Rhino measure. With
    `trains`, modules behave as in training mode.
    """
    sizes = STAGES[one_of("number of layers", str(layers), STAGES)]
    return build_resnet(
        sizes, channels, batch, image, classes, dtype,
        width_factor=width_factor, trains=trains,
    )  # fmt: skip


def build_resnet(
    blocks: Sequence[int],
    channels: int,
    batch: int,
    image: int = 224,
    classes: int = 1000,
    dtype: str = "f32",
    *,
    width_factor: int = 1,
    wide_first: bool = False,
    trains: bool = False,
) -> ModuleOp:
    """
    Returns the forward pass of a ResNet whose stage i has `blocks[i]` bottleneck
    blocks, as in torchvision's `ResNet(Bottleneck, blocks)`, from images [batch, 3,
    image, image] to logits [batch, classes]. `channels` and `width_factor` give the
    channels of the convolutions in a block, as `build_wide_resnet` describes. With
    `wide_first`, the first convolution of a block has as many channels as the block's
    3 x 3 convolution; with 64 channels and a `width_factor` of n, the model is then
    torchvision's with a `width_per_group` of 64 n. Raises DistIRError for a size that
    is not valid.
    """
    check_sizes(channels=channels, width_factor=width_factor, classes=classes)
    check_sizes(batch=batch, image=image)
    main = ModuleBuilder(element_type(dtype), trains=trains)
    h = main.argument("input", (batch, 3, image, image), role="input")
    h = main.convolution("conv1", h, channels, 7, stride=2, padding=3)
    h = main.batch_norm("bn1", h)
    h = main.at("relu").elementwise("Relu", h)
    h = main.at("maxpool").max_pool(h, 3, 2, padding=1)
    factors = (width_factor if wide_first else 1), width_factor
    layers: list[Layer] = []
    for stage, count in enumerate(blocks):
        name, inside = f"layer{stage + 1}", channels * 2**stage
        stride = 2 if stage else 1
        h = _block(main, f"{name}.0", h, inside, factors, stride)
        if count > 1:
            layers.append(_repeated(main, name, h, inside, factors))
            others = [f"{name}.{index}" for index in range(1, count)]
            h = main.stack([(other, layers[-1]) for other in others], h)
    sides = main.at("avgpool").integers(2, 3)
    h = main.op("ReduceMean", [h, sides], shape_of(h)[:2], keepdims=0)
    logits = main.linear("fc", h, classes)
    functions = [layer.function for layer in layers]
    return ModuleOp([main.finish(ENTRY, [logits], ["logits"]), *functions])


def _repeated(
    main: ModuleBuilder, stage: str, like: SSAValue, channels: int, factors: Factors
) -> Layer:
    """
    Returns the layer that is called for each block of `stage` except the first block.
    """
    b = ModuleBuilder(main.element, f"{stage}.*", main.trains)
    x = b.argument("hidden", shape_of(like), role=None)
    return b.layer(stage, _block(b, "", x, channels, factors, 1))


def _block(
    b: ModuleBuilder, name: str, x: SSAValue, channels: int, factors: Factors,
    stride: int,
) -> SSAValue:  # fmt: skip
    """
    Adds a bottleneck block and returns its result. If input and output differ in shape,
    a convolution on the residual branch gives the input the output's shape.
    """

    def module(part: str) -> str:
        return f"{name}.{part}".lstrip(".")

    h = x
    for number, outputs, kernel in (
        (1, channels * factors[0], 1),
        (2, channels * factors[1], 3),
        (3, 4 * channels, 1),
    ):
        step = stride if kernel == 3 else 1
        conv = module(f"conv{number}")
        h = b.convolution(conv, h, outputs, kernel, stride=step, padding=kernel // 2)
        h = b.batch_norm(module(f"bn{number}"), h)
        if number < 3:
            h = b.at(module("relu")).elementwise("Relu", h)
    if shape_of(x) != shape_of(h):
        x = b.convolution(module("downsample.0"), x, 4 * channels, 1, stride=stride)
        x = b.batch_norm(module("downsample.1"), x)
    h = b.at(name).elementwise("Add", h, x)
    return b.at(module("relu")).elementwise("Relu", h)
