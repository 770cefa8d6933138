"""ViT: an encoder of image patches."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.function_builder import Layer, check_sizes, element_type
from distir.frontends.models.module_builder import ModuleBuilder, check_heads
from distir.program import ENTRY

_EPSILON = 1e-12


def build_vit(
    layers: int,
    d_model: int,
    heads: int,
    classes: int,
    batch: int,
    image: int = 224,
    patch: int = 16,
    dtype: str = "f32",
) -> ModuleOp:
    """
    Returns the forward pass of a vision transformer from square images [batch, 3,
    image, image] to logits [batch, classes].

    The tokens are patches of `patch` x `patch` pixels and one class token. The model
    has learned positions, norms before attention and before the MLP, and MLPs of width
    4 `d_model`. Parameters have the names and shapes of Hugging Face's
    ViTForImageClassification. Raises DistIRError if a size is not positive, the patches
    do not divide the image or the heads do not divide the width.
    """
    check_sizes(layers=layers, d_model=d_model, heads=heads, classes=classes)
    check_sizes(batch=batch, image=image, patch=patch)
    check_heads(d_model, heads)
    if image % patch:
        raise DistIRError(
            f"patches of {patch} pixels do not divide pictures of {image}; choose a size "
            "of pictures that is a multiple"
        )
    element, tokens = element_type(dtype), (image // patch) ** 2 + 1
    layer = _layer(element, (batch, tokens, d_model), heads)

    main = ModuleBuilder(element)
    shape = (batch, 3, image, image)
    pictures = main.argument("pixel_values", shape, role="input")
    h = _embeddings(main, pictures, d_model, patch)
    calls = [(f"vit.layers.{index}", layer) for index in range(layers)]
    h = main.norm("vit.layernorm", main.stack(calls, h), _EPSILON)
    first = main.at("classifier").constant(np.array(0, np.int64))
    h = main.op("Gather", [h, first], (batch, d_model), axis=1)
    logits = main.linear("classifier", h, classes)
    return ModuleOp([main.finish(ENTRY, [logits], ["logits"]), layer.function])


def _embeddings(
    main: ModuleBuilder, pictures: SSAValue, width: int, patch: int
) -> SSAValue:
    """
    Returns the embeddings of the class token and of the patches, [batch, tokens,
    width]. The embeddings of the tokens' positions are already added.
    """
    name = "vit.embeddings"
    batch, _, image, _ = shape_of(pictures)
    token = main.at(name).parameter(f"{name}.cls_token", (1, 1, width))
    patches = (image // patch) ** 2
    positions = main.parameter(f"{name}.position_embeddings", (1, patches + 1, width))
    projection = f"{name}.patch_embeddings.projection"
    h = main.convolution(projection, pictures, width, patch, stride=patch, bias=True)
    main.at(name)
    h = main.reshape(h, (batch, width, patches))
    h = main.transpose(h, 0, 2, 1)
    token = main.op("Expand", [token, main.integers(batch, 1, 1)], (batch, 1, width))
    h = main.op("Concat", [token, h], (batch, patches + 1, width), axis=1)
    return main.elementwise("Add", h, positions)


def _layer(element: TypeAttribute, hidden: tuple[int, int, int], heads: int) -> Layer:
    """
    Returns a ViT layer: attention and an MLP, each after a norm and with a residual
    branch.
    """
    width = hidden[-1]
    b = ModuleBuilder(element, "vit.layers.*")
    x = b.argument("hidden", hidden, role=None)
    h = b.norm("layernorm_before", x, _EPSILON)
    q, k, v = (b.linear(f"attention.{name}_proj", h, width) for name in ("q", "k", "v"))
    b.at("attention")
    q, k, v = (b.heads(part, width // heads) for part in (q, k, v))
    h = b.merge_heads(b.attention(q, k, v))
    h = b.linear("attention.o_proj", h, width)
    x = b.at().elementwise("Add", h, x)
    h = b.norm("layernorm_after", x, _EPSILON)
    h = b.linear("mlp.fc1", h, 4 * width)
    h = b.at("mlp.activation_fn").elementwise("Gelu", h)
    h = b.linear("mlp.fc2", h, width)
    return b.layer("layer", b.at().elementwise("Add", h, x))
