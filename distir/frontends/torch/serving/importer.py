"""
Imports a Hugging Face decoder or encoder-decoder as a program with the entries prefill
and decode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from xdsl.dialects.func import FuncOp

from distir.dialects.dist_attributes import NAME, ROLE
from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.serving import (
    DECODE,
    PAGE_TABLE,
    PREFILL,
    ServingSizes,
    mark_inputs,
    mark_new_caches,
)
from distir.frontends.torch.export.experts import experts_as_ops
from distir.frontends.torch.importer import import_torch
from distir.frontends.torch.modules.meta import lacks_values, without_values
from distir.frontends.torch.serving.caches import layer_windows
from distir.frontends.torch.serving.encoder_decoder import (
    CROSS,
    SELF,
    DecodeBehindPrompts,
    EncodePrompts,
    start_token,
)
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
    model: Any,
    sizes: ServingSizes,
    *,
    check: bool = True,
    allow: Sequence[str] = (),
) -> dict[str, ImportedModel]:
    """
    Imports `prefill` and `decode`, the generation steps of a causal language model or
    of an encoder-decoder, and returns them by name. Both take the cache as arguments
    with the role `cache`, and return the new cache as results that replace these
    arguments. `check` and `allow` are options of `import_torch`. Raises DistIRError if
    a layer has no static cache, or if the model cannot be imported.
    """
    batch = sizes.batch
    prompts = torch.zeros(batch, sizes.prompt, dtype=torch.int64)
    padding = torch.zeros(batch, dtype=torch.int64)
    is_encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    start = start_token(model.config) if is_encoder_decoder else None
    makers = (
        (EncodePrompts, DecodeBehindPrompts)
        if is_encoder_decoder
        else (Prefill, Decode)
    )
    prefill, decode = (maker(model, sizes) for maker in makers)
    paged = _page_table(model.config, sizes)
    content = empty_cache(prefill, prompts, padding, *paged.values())
    tokens = torch.zeros(batch, 1, dtype=torch.int64)
    positions = torch.full((batch,), sizes.cache - 1, dtype=torch.int64)
    decoded = {"input_ids": tokens, "positions": positions}
    if is_encoder_decoder:
        decoded["padding"] = padding
    steps: dict[str, tuple[torch.nn.Module, dict[str, torch.Tensor]]] = {
        PREFILL: (prefill, {"input_ids": prompts, "padding": padding} | paged),
        DECODE: (decode, decoded | paged),
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
        function = entry_function(imported.module)
        _mark_cache(function, len(inputs), cache_names(content))
        # Decode only reads the keys and values of prompts.
        kept = {k: v for k, v in content.items() if not k.startswith(CROSS)}
        mark_new_caches(function, cache_names(content if name == PREFILL else kept))
        mark_inputs(function, sizes, start)
    return found


def _page_table(config: Any, sizes: ServingSizes) -> dict[str, torch.Tensor]:
    """
    Returns an example table of pages [batch, columns] by the name of the input, or an
    empty dictionary if the cache has no pages. Sequences have different pages, as long
    as there are enough pages. Raises DistIRError if no layer of the model attends to
    all tokens.
    """
    if (paging := sizes.paging) is None:
        return {}
    if 0 not in layer_windows(config):
        raise DistIRError(
            "--page-size is for layers that attend to all tokens, which the model does not "
            "have; leave it out"
        )
    numbers = torch.arange(sizes.batch // paging.pools * sizes.columns) % paging.pages
    table = numbers.reshape(sizes.columns, -1).t().repeat(paging.pools, 1)
    return {PAGE_TABLE: table.contiguous()}


def empty_cache(
    prefill: torch.nn.Module,
    prompts: torch.Tensor,
    padding: torch.Tensor,
    table: torch.Tensor | None = None,
) -> dict[str, dict[str, torch.Tensor]]:
    """
    Returns a cache of zeros with the shapes that the model needs. Finds the shapes by
    running `prefill` without values. `table` has the pages of each sequence; it is None
    if the cache has no pages. If the model's parameters have no values, the tensors of
    the cache have no values either.
    """
    given = (prompts, padding) if table is None else (prompts, padding, table)
    with (
        without_values(prefill, given) as own,
        experts_as_ops(None, len(prompts)),
        torch.no_grad(),
    ):
        # A module without values has stand-ins that compute nothing either.
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with contextlib.nullcontext() if lacks_values(prefill) else fake:
            zeros = [torch.zeros_like(x) for x in own]
            prefill(*zeros[:2], None, *zeros[2:])
    shapes: Mapping[str, Mapping[str, Any]] = prefill.__dict__["discovered"]
    # A cache may be larger than the memory of this machine.
    device = "meta" if lacks_values(prefill) else "cpu"
    return {
        layer: {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in own.items()
        }
        for layer, own in shapes.items()
    }


def cache_names(content: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """
    Returns the names of a cache's tensors, in the order in which PyTorch flattens the
    cache, such as `cache.0.key`, or `cache.cross0.key` for cross-attention to the
    prompts of an encoder-decoder.
    """
    return [
        f"cache.{layer.removeprefix(SELF)}.{name}"
        for layer, own in content.items()
        for name in own
    ]


def _mark_cache(function: FuncOp, others: int, names: Sequence[str]) -> None:
    """
    Sets `names` and the role `cache` on the arguments that hold the cache. These
    arguments come after the first `others` inputs, because the exporter keeps the order
    of the inputs. Raises DistIRError if the model has more or fewer inputs than
    expected.
    """
    attributes = argument_attributes(function)
    inputs = [i for i, role in enumerate(argument_roles(function)) if role == "input"]
    own = inputs[-len(names) :] if names else []
    if len(inputs) != len(names) + others:
        raise DistIRError(
            f"the model takes {argument_names(function)[: len(inputs)]}, which are not "
            f"its tokens, their places and a cache of {len(names)} tensors"
        )
    for index, name in zip(own, names, strict=True):
        attributes[index][ROLE] = ROLE.attr(CACHE)
        attributes[index][NAME] = NAME.attr(name)
    set_argument_attributes(function, attributes)
