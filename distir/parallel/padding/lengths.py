"""Pads the sequences of a call to one of a few lengths, each of which is a program."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from distir.errors import DistIRError
from distir.gradients.options import IGNORED_LABEL

Lengths = int | Sequence[int]
"""A number of which lengths are made multiples, or the lengths that there may be."""

_LABELS = "labels"
"""The name that stands for all labels."""


@dataclass(frozen=True)
class Padding:
    """
    The lengths that calls pad sequences to. Sequences are dimension 1 of the inputs and
    labels named in `lengths`, each with its own lengths; with the name "" of all integers
    and flags that have such a dimension. `values` are the numbers that are appended, by
    name: by default 0, and the label that does not count.
    """

    lengths: Mapping[str, tuple[int, ...]]
    values: Mapping[str, float]

    @staticmethod
    def of(
        pad_to: Lengths | Mapping[str, Lengths] | None,
        pad_with: Mapping[str, float] | None,
    ) -> Padding | None:
        """
        Returns the padding that the arguments of `parallelize` ask for; None for none.
        Raises DistIRError if they are wrong.
        """
        if pad_to is None:
            if pad_with:
                raise DistIRError(
                    "parallelize: pad_with says what sequences are padded with, but nothing "
                    "is padded; give pad_to too"
                )
            return None
        named = pad_to if isinstance(pad_to, Mapping) else {"": pad_to}
        found: dict[str, tuple[int, ...]] = {}
        for name, given in named.items():
            own = (given,) if isinstance(given, int) else tuple(given)
            if not own or min(own) < 1 or list(own) != sorted(set(own)):
                raise DistIRError(
                    f"parallelize: pad_to is {given!r}; give a number of which lengths are "
                    f"made multiples, such as 64, or lengths in ascending order"
                )
            found[name] = (-own[0],) if isinstance(given, int) else own
        return Padding(found, dict(pad_with or {}))

    def check_names(self, inputs: Sequence[str], labels: Sequence[str]) -> None:
        """Raises DistIRError for a name that no input has; `labels` are names of labels."""
        known = [*inputs, *labels]
        if labels and _LABELS not in labels:
            known.append(_LABELS)
        for name in (*self.lengths, *self.values):
            if name and name not in known:
                raise DistIRError(
                    f"parallelize: pad_to or pad_with names {name!r}, which is no input; "
                    f"there are {', '.join(known)}"
                )

    def of_ranks(
        self,
        specs: Sequence[Any],
        labels: Sequence[str],
        rows: Sequence[Sequence[Sequence[int]]],
    ) -> dict[str, int]:
        """
        Returns the length of each input and label that is padded, by name, if the ranks have
        tensors of the shapes `rows`: the least one that the longest sequence has room in.
        Raises DistIRError for one that is longer than any length.
        """
        found: dict[str, int] = {}
        for index, spec in enumerate(specs):
            lengths = self._lengths(spec, labels)
            if lengths is None:
                continue
            if len(spec.shape) < 2:
                if spec.name not in self.lengths:
                    continue
                raise DistIRError(
                    f"parallelize: pad_to names {spec.role} {spec.name!r}, which has no "
                    f"dimension 1, of sequences; leave it out"
                )
            size = max(shapes[index][1] for shapes in rows)
            if lengths[0] < 0:
                found[spec.name] = -(-size // -lengths[0]) * -lengths[0]
                continue
            place = bisect_left(lengths, size)
            if place == len(lengths):
                raise DistIRError(
                    f"{spec.role} {spec.name!r} has length {size}, and the largest that "
                    f"pad_to allows is {lengths[-1]}; cut it, or allow a larger one"
                )
            found[spec.name] = lengths[place]
        return found

    def _lengths(self, spec: Any, labels: Sequence[str]) -> tuple[int, ...] | None:
        names = (spec.name, _LABELS) if spec.name in labels else (spec.name,)
        for name in names:
            if name in self.lengths:
                return self.lengths[name]
        is_float = spec.dtype.is_floating_point or spec.dtype.is_complex
        return None if is_float else self.lengths.get("")

    def padded(
        self, name: str, tensor: torch.Tensor, length: int, *, is_label: bool
    ) -> torch.Tensor:
        """Returns an input or label with sequences of this length."""
        missing = length - tensor.shape[1]
        if not missing:
            return tensor
        is_float = tensor.is_floating_point() or tensor.is_complex()
        value = IGNORED_LABEL if is_label and not is_float else 0
        if is_label:
            value = self.values.get(_LABELS, value)
        value = self.values.get(name, value)
        return F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, missing), value=value)


def cut(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Returns a tensor without what it has, in its dimensions but the first, beyond `shape`."""
    for dim, size in enumerate(shape[1:], 1):
        if tensor.shape[dim] > size:
            tensor = tensor.narrow(dim, 0, size)
    return tensor
