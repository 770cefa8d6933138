"""Imports a Hugging Face decoder as a program with the entries prefill and decode."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

from distir.dialects.dist_attributes import NAME, ROLE
from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.serving import (
    DECODE,
    PREFILL,
    ServingSizes,
    mark_inputs,
    mark_new_caches,
)
from distir.frontends.torch.export.experts import experts_as_ops
from distir.frontends.torch.importer import import_torch
from distir.frontends.torch.modules.meta import lacks_values, without_values
from distir.frontends.torch.serving.modules import Decode, Prefill
from distir.program import (
    CACHE,
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    set_argument_attributes,
)


def import_serving(
    model: torch.nn.Module,
    sizes: ServingSizes,
    *,
    check: bool = True,
    allow: Sequence[str] = (),
) -> dict[str, ImportedModel]:
    """
    Imports `prefill` and `decode`, the generation steps of a causal language model, and
    returns them by name. Both take the cache as arguments with the role `cache`, and
    return the new cache as results that replace these arguments. `check` and `allow`
    are options of `import_torch`. Raises DistIRError if a layer has no static cache, or
    if the model cannot be imported.
    """
    batch = sizes.batch
    prompts = torch.zeros(batch, sizes.prompt, dtype=torch.int64)
    padding = torch.zeros(batch, dtype=torch.int64)
    prefill = Prefill(model, sizes.cache)
    content = empty_cache(prefill, prompts, padding)
    tokens = torch.zeros(batch, 1, dtype=torch.int64)
    positions = torch.full((batch,), sizes.cache - 1, dtype=torch.int64)
    steps: dict[str, tuple[torch.nn.Module, dict[str, Any]]] = {
        PREFILL: (prefill, {"input_ids": prompts, "padding": padding}),
        DECODE: (
            Decode(model, sizes.cache),
            {"input_ids": tokens, "positions": positions},
        ),
    }
    found: dict[str, ImportedModel] = {}
    for name, (module, inputs) in steps.items():
        found[name] = imported = import_torch(
            module,
            (),
            inputs | {"cache": content},
            copy=False,
            check=check,
            allow=allow,
            exporter="dynamo",
        )
        _mark_cache(imported, content)
        mark_inputs(entry_function(imported.module), sizes.cache)
    return found


def empty_cache(
    prefill: Prefill, prompts: torch.Tensor, padding: torch.Tensor
) -> dict[str, dict[str, torch.Tensor]]:
    """
    Returns a cache of zeros with the shapes that the model needs. The shapes are found
    by running prefill without values.
    """
    with (
        without_values(prefill, (prompts, padding)) as own,
        experts_as_ops(None, len(prompts)),
        torch.no_grad(),
    ):
        # A module without values has stand-ins that compute nothing either.
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with contextlib.nullcontext() if lacks_values(prefill) else fake:
            prefill(*(torch.zeros_like(x) for x in own), None)
    shapes: Mapping[str, Mapping[str, Any]] = prefill.__dict__["discovered"]
    return {
        layer: {
            name: torch.zeros(shape, dtype=dtype)
            for name, (shape, dtype) in own.items()
        }
        for layer, own in shapes.items()
    }


def cache_names(content: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """
    Returns the names of the tensors of a cache, such as `cache.0.key`, in the order of
    its leaves.
    """
    return [
        f"cache.{layer.removeprefix('layer')}.{name}"
        for layer, own in content.items()
        for name in own
    ]


def _mark_cache(
    imported: ImportedModel, content: Mapping[str, Mapping[str, Any]]
) -> None:
    """
    Sets names and the role `cache` on the arguments and results that hold the cache.
    The exporter keeps the order of leaves, and the cache comes last. Raises DistIRError
    if the model has other inputs than expected.
    """
    function = entry_function(imported.module)
    names = cache_names(content)
    attributes = argument_attributes(function)
    inputs = [i for i, role in enumerate(argument_roles(function)) if role == "input"]
    own = inputs[-len(names) :] if names else []
    if len(inputs) != len(names) + 2:
        raise DistIRError(
            f"the model takes {argument_names(function)[: len(inputs)]}, which are not "
            f"its tokens, their places and a cache of {len(names)} tensors"
        )
    for index, name in zip(own, names, strict=True):
        attributes[index][ROLE] = ROLE.attr(CACHE)
        attributes[index][NAME] = NAME.attr(name)
    set_argument_attributes(function, attributes)
    mark_new_caches(function, names)
    leaves = _pytree.tree_leaves(content)
    assert len(leaves) == len(names)
