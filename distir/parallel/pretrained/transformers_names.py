"""
The names of the tensors of transformers' models in their files. In files, the prefix of
the base model may be missing or added, names may be those of older versions, and each
expert's matrices may be separate.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from distir.parallel.pretrained.stored import Concatenated, InBoxes, InMemory, Stacked


def is_of_transformers(source: nn.Module) -> bool:
    """Whether a module is a `PreTrainedModel` of transformers."""
    return any(
        kind.__name__ == "PreTrainedModel"
        and kind.__module__ == "transformers.modeling_utils"
        for kind in type(source).__mro__
    )


def by_names_of_model(
    source: nn.Module, stored: Mapping[str, InBoxes]
) -> dict[str, InBoxes]:
    """
    Returns the tensors of the model `source` by their names in it. `stored` are the
    tensors of its files. The names are mapped as by `from_pretrained` of the model.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    model: Any = source
    mapping = get_model_conversion_mapping(model)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    state = source.state_dict()
    prefix = str(model.base_model_prefix)
    found: dict[str, InBoxes] = {}
    converted: dict[str, tuple[Any, dict[str, list[InBoxes]]]] = {}
    for key in sorted(stored, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, prefix, state)
        if name not in state and key in state:
            name, pattern = key, None
        if pattern is None:
            found[name] = stored[key]
            continue
        converter = next(c for c in converters if pattern in c.source_patterns)
        _, parts = converted.setdefault(name, (converter, {}))
        parts.setdefault(pattern, []).append(stored[key])
    for name, (converter, parts) in converted.items():
        joined = _joined(converter.operations, converter.source_patterns, parts)
        if joined is not None:
            found[name] = joined
        else:
            found.update(_computed(source, converter, name, parts))
    return found


def _joined(
    operations: Sequence[Any],
    patterns: Sequence[str],
    parts: Mapping[str, Sequence[InBoxes]],
) -> InBoxes | None:
    """
    Returns the tensor that `operations` compute from the tensors `parts`, given by the
    `patterns` that their names match. Returns None unless the operations only stack and
    concatenate, because only then can a rank read a part.
    """
    from transformers.core_model_loading import Concatenate, MergeModulelist

    ordered = [list(parts[pattern]) for pattern in patterns if pattern in parts]
    for operation in operations:
        if type(operation) is MergeModulelist:
            ordered = [[Stacked(own, operation.dim)] for own in ordered]
        elif type(operation) is Concatenate:
            every = [part for own in ordered for part in own]
            ordered = [[Concatenated(every, operation.dim)]]
        else:
            return None
    return ordered[0][0] if len(ordered) == 1 and len(ordered[0]) == 1 else None


def _computed(
    source: nn.Module,
    converter: Any,
    name: str,
    parts: Mapping[str, Sequence[InBoxes]],
) -> dict[str, InBoxes]:
    """
    Returns, by name, the tensors that `converter` computes from the stored tensors
    `parts`. Each result is computed as a whole when it is read. A computation without
    values determines the names of the results.
    """

    def computed(device: str | None) -> dict[str, torch.Tensor]:
        own = copy.deepcopy(converter)
        for pattern, tensors in parts.items():
            for tensor in tensors:
                value = (
                    tensor.whole()
                    if device is None
                    else torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                )
                own.add_tensor(name, name, pattern, value)
        made = own.convert(name, model=source, config=source.config)
        return {n: v[0] if isinstance(v, list) else v for n, v in made.items()}

    return {
        each: _Computed(lambda each=each: computed(None)[each], value)
        for each, value in computed("meta").items()
    }


class _Computed(InBoxes):
    """The tensor that `compute` returns, with the shape and the type of `like`."""

    def __init__(self, compute: Any, like: torch.Tensor):
        super().__init__(like.dtype, like.shape)
        self._compute = compute

    def read(self, target: torch.Tensor, start: Sequence[int]) -> None:
        """
        Computes the whole tensor, and copies the box that begins at `start` into
        `target`.
        """
        InMemory(self._compute()).read(target, start)
