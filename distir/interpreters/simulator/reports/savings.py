"""Suggestions for less memory at a peak, from layouts and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from distir.dialects.dist import layout_of
from distir.interpreters.simulator.engine.compiled import CallStep
from distir.interpreters.simulator.reports.value_kinds import (
    ACTIVATIONS,
    GRADIENTS,
    PARAMETERS,
    STATES,
)
from distir.sharding.layout import local_shape
from distir.sharding.mesh import Mesh


@dataclass(frozen=True)
class Held:
    """
    Memory of a value (None: of an op's workspace, or of libraries) that is alive at the
    peak of a group of devices: `size` bytes on each. `scope` is the module of the source
    model; `calls` lead to the call that made it, if that has returned.
    """

    value: SSAValue | None
    kind: str
    name: str
    scope: str
    size: int
    calls: tuple[CallStep, ...] = ()


_OPTIONS = {
    (STATES, "d"): "--zero 1",
    (GRADIENTS, "d"): "--zero 2",
    (PARAMETERS, "d"): "--zero 3",
    (ACTIVATIONS, "t"): "--sequence-parallel",
}
"""The options of `distir distribute` that split a kind of values over an axis."""

_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Saving:
    """
    A possible saving: `why` explains for what `size` bytes at the peak are used, `how` says
    what to do about it, and `saved` bytes would then be free at that moment. The peak may
    go down by less, as it may move to another moment.
    """

    kind: str
    size: int
    saved: int
    why: str
    how: str

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "bytes": self.size,
            "saved_bytes": self.saved,
            "why": self.why,
            "how": self.how,
        }


def savings(
    held: Sequence[Held], peak: int, mesh_of: Mapping[str, Mesh]
) -> list[Saving]:
    """
    Returns possible savings of more than a hundredth of the peak, the largest first: values
    that are whole on all devices of a mesh axis although the axis divides them, and values
    that calls of a function left for the backward pass.
    """
    found = [*_replicated(held, mesh_of), *_kept(held)]
    large = [saving for saving in found if saving.saved >= _LEAST_SHARE * peak]
    return sorted(large, key=lambda saving: -saving.saved)


def _replicated(held: Sequence[Held], mesh_of: Mapping[str, Mesh]) -> list[Saving]:
    totals: dict[tuple[str, str, int, bool], tuple[int, int]] = {}
    for item in held:
        layout = None if item.value is None else layout_of(item.value)
        if item.value is None or layout is None:
            continue
        mesh, type_ = mesh_of[layout.mesh], item.value.type
        assert isinstance(type_, TensorType)
        shape = local_shape(type_.get_shape(), layout, mesh)
        for axis, devices in mesh.axes:
            if axis in layout.split_axes or devices == 1:
                continue
            if all(size % devices for size in shape):
                continue
            key = (item.kind, axis, devices, axis in layout.partial_axes)
            size, saved = totals.get(key, (0, 0))
            saved += item.size - item.size // devices
            totals[key] = (size + item.size, saved)
    savings: list[Saving] = []
    for (kind, axis, devices, is_partial), (size, saved) in totals.items():
        what = "terms of the same sum" if is_partial else "the same"
        option = _OPTIONS.get((kind, axis))
        how = f"split over them ({option})" if option else "split over them"
        why = f"{what} on the {devices} devices of axis {axis}"
        savings.append(Saving(kind, size, saved, why, how))
    return savings


def _kept(held: Sequence[Held]) -> list[Saving]:
    """
    Returns the savings in what calls keep besides their results, in programs that have
    gradients.
    """
    if not any(item.kind == GRADIENTS for item in held):
        return []
    calls: dict[tuple[CallStep, ...], list[Held]] = {}
    for item in held:
        if item.kind == ACTIVATIONS and item.calls:
            calls.setdefault(item.calls, []).append(item)
    by_function: dict[str, tuple[int, int]] = {}
    for path, items in calls.items():
        if len(items) > 1:
            function = path[-1].callee.name
            count, size = by_function.get(function, (0, 0))
            size += sum(item.size for item in items)
            by_function[function] = (count + 1, size)
    return [
        Saving(
            ACTIVATIONS,
            size,
            size,
            f"kept by {count} call{'s' if count > 1 else ''} of @{function}",
            "computed again, but for what the calls take in (--checkpoint full)",
        )
        for function, (count, size) in by_function.items()
    ]
