"""VGG19: convolutions and a large classifier."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.function_builder import check_sizes, element_type
from distir.frontends.models.module_builder import ModuleBuilder
from distir.program import ENTRY

_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""
The number of channels and of convolutions of each stage. Each stage ends by halving the
image's sides.
"""

_SMALLEST = 2 ** len(_STAGES)


def build_vgg(
    batch: int,
    image: int = 224,
    classes: int = 1000,
    dtype: str = "f32",
    *,
    width: int = 4096,
) -> ModuleOp:
    """
    Returns the forward pass of VGG19 without dropout, from images [batch, 3, image,
    image] to logits [batch, classes]. `width` is the width of the classifier's two
    hidden layers. Parameters have the names and shapes of torchvision's vgg19. Raises
    DistIRError if `image` is not a multiple of 32.
    """
    check_sizes(batch=batch, image=image, classes=classes, width=width)
    if image % _SMALLEST:
        raise DistIRError(
            f"pictures of {image} pixels cannot be halved {len(_STAGES)} times; choose a "
            f"multiple of {_SMALLEST}"
        )
    main = ModuleBuilder(element_type(dtype))
    h = main.argument("input", (batch, 3, image, image), role="input")
    index = 0
    for channels, convolutions in _STAGES:
        for _ in range(convolutions):
            name = f"features.{index}"
            h = main.convolution(name, h, channels, 3, padding=1, bias=True)
            h = main.at(f"features.{index + 1}").elementwise("Relu", h)
            index += 2
        h = main.at(f"features.{index}").max_pool(h, 2, 2)
        index += 1
    _, channels, *sides = shape_of(h)
    h = main.at().reshape(h, (batch, channels * sides[0] * sides[1]))
    for name in ("classifier.0", "classifier.3"):
        h = main.linear(name, h, width)
        h = main.elementwise("Relu", h)
    logits = main.linear("classifier.6", h, classes)
    return ModuleOp([main.finish(ENTRY, [logits], ["logits"])])
