"""
The memory that training in eager PyTorch takes in addition to a program's values.

FSDP: a program frees a gathered parameter after its last use, and a gradient when it is
reduced. FSDP keeps three kinds of values longer. It gathers the parameters of the root
module, such as embeddings and the head, once, and keeps them until the end of the
backward pass. It reduces the root's gradients at this end. What it gathers ahead is in
one buffer, and copied to parameters when the layer before is done, so that it is not
there twice beside that layer. And FSDP holds a buffer of one
layer's parameters between the layers' forward and backward passes: in the forward pass,
the buffer of the last gather, and in the backward pass that of the next one, which
begins before the loss's gradient is computed, if the model computes the loss.

DDP copies each gradient into a buffer, reduces it there, and copies it back. It keeps
these buffers, the buckets, from one step to the next. So the gradients of all replicated
parameters are in memory throughout a step, and those that a step has computed are there
twice. With `gradient_as_bucket_view`, which is off by default, they are there once.

Optimizers: a program updates one parameter after the other, in place. `Adam` and `AdamW`
with `foreach`, the default on GPUs, take the roots of all second moments before they
divide by any of them. For a short time, there is one more tensor for each parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllGatherOp, ReduceScatterOp
from distir.dialects.dist import Layout, layout_of
from distir.dialects.train_ops.offload import FetchOp
from distir.dialects.train_ops.optimizers import AdamFamilyOp
from distir.interpreters.simulator.engine.compiled import (
    Allocation,
    CallStep,
    CommunicationStep,
    CompiledFunction,
    CompiledStep,
    ComputationStep,
    OpStep,
)
from distir.interpreters.simulator.engine.device_map import DeviceMap
from distir.program import (
    argument_roles,
    parameters_of_gradients,
    parameters_of_states,
    updated_arguments,
)


def keep_gathered(
    roles: Sequence[str], steps: Sequence[CompiledStep]
) -> dict[int, int]:
    """
    Returns the gathered parameters and the gradients that FSDP keeps after their last
    use in a function: for each slot (the index of a value), the index of the step after
    which its memory becomes free. `roles` has the role of each argument; arguments have
    the first slots. A parameter belongs to a layer if a call uses it, else to the root.
    If the root's parameter is gathered again, the second copy is removed from `steps`,
    as FSDP still has the first.

    The result is empty for a function that calls no layers with gathered parameters,
    or gathers each of these once, as with ZeRO 1 and 2. If the called functions gather
    parameters themselves, only the root's are kept.
    """
    found = _Gathers.of(roles, steps)
    layers, root = found.by_argument(True), found.by_argument(False)
    if not found.calls or (layers and all(len(p) == 1 for p in layers.values())):
        return {}
    reduced = {
        step.operands[0]: place
        for place, step in enumerate(steps)
        if isinstance(step.op, ReduceScatterOp) and step.op.axis_names in found.axes
    }
    end = max((*reduced.values(), max(found.calls) + 1))
    if end == len(steps) or not isinstance(steps[end], OpStep):
        return {}
    for places in layers.values():
        for step in (steps[place] for place in places):
            if isinstance(step, CommunicationStep) and step.is_asynchronous:
                # The message lies in one buffer until the layer before it is done.
                step.workspace = 0
    return {
        **dict.fromkeys(reduced.keys() - found.results, end),
        **_until(end, root.values(), steps),
        **_between(found.calls, layers.values(), steps),
    }


@dataclass
class _Gathers:
    """
    The gathers of parameters in a function. Places are indices of steps.

    - `arguments`: for the place of each gather, the slot of the parameter, which is an
      argument;
    - `calls`: for the place of each call of a layer, the places of the gathers whose
      results the call uses. It is a call of a layer if there are such gathers, or if
      the called function gathers parameters;
    - `results`: the slots of the results of these calls, and of their views and casts;
    - `axes`: the axes over which parameters are gathered.
    """

    arguments: dict[int, int] = field(default_factory=dict[int, int])
    calls: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    results: set[int] = field(default_factory=set[int])
    axes: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])

    @staticmethod
    def of(roles: Sequence[str], steps: Sequence[CompiledStep]) -> _Gathers:
        """
        Returns the gathers in `steps`, the steps of a function with arguments of the
        roles `roles`. Ops of one operand, such as casts, may come before and after a
        gather.
        """
        found = _Gathers()
        # By the slot of a value: its argument, and the gather that it comes from.
        made_from = {s: s for s, role in enumerate(roles) if role == "parameter"}
        gathered: dict[int, int] = {}
        inside: dict[CompiledFunction, frozenset[int]] = {}
        for place, step in enumerate(steps):
            if isinstance(step, CallStep):
                used = {gathered[slot] for slot in step.operands if slot in gathered}
                if step.callee not in inside:
                    inside[step.callee] = _gathered_arguments(step.callee)
                own = inside[step.callee]
                if used or any(slot in made_from for slot in _given(step, own)):
                    found.calls[place] = used
                    found.results.update(step.defined)
            elif len(step.operands) == 1:
                (source,) = step.operands
                if isinstance(step.op, AllGatherOp) and source in made_from:
                    found.arguments[place] = made_from[source]
                    found.axes.add(step.op.axis_names)
                    gathered.update(dict.fromkeys(step.defined, place))
                elif not isinstance(step.op, CollectiveOp):
                    for known in (made_from, gathered):
                        if source in known:
                            known.update(dict.fromkeys(step.defined, known[source]))
                    if source in found.results and _keeps_elements(step):
                        found.results.update(step.defined)
        return found

    def by_argument(self, of_layers: bool) -> Mapping[int, Sequence[int]]:
        """
        Returns the places of the gathers of each parameter, by the parameter's slot:
        those of the layers' parameters if `of_layers` is set, else those of the root's.
        """
        used = set[int]().union(*self.calls.values())
        layers = {self.arguments[place] for place in used}
        found: dict[int, list[int]] = {}
        for place, slot in self.arguments.items():
            if (slot in layers) == of_layers:
                found.setdefault(slot, []).append(place)
        return found


def _keeps_elements(step: CompiledStep) -> bool:
    """Whether a step makes a view of its operand, or casts it to another type."""
    is_view = isinstance(step, ComputationStep) and step.view_of is not None
    return is_view or step.op.name == "onnx.Cast"


def _gathered_arguments(function: CompiledFunction) -> frozenset[int]:
    """Returns the slots of a function's arguments that the function gathers."""
    return frozenset(
        step.operands[0]
        for step in function.steps
        if isinstance(step.op, AllGatherOp) and step.operands[0] < function.arguments
    )


def _given(call: CallStep, places: Collection[int]) -> list[int]:
    """
    Returns the caller's slots that `call` gives to the called function as arguments
    with the indices `places`.
    """
    if call.fixed is None:
        return [slot for i, slot in enumerate(call.operands) if i in places]
    fixed = dict(zip(call.fixed.places, call.fixed.slots, strict=True))
    others = iter(call.operands)
    count = len(fixed) + len(call.operands)
    all_slots = [fixed[i] if i in fixed else next(others) for i in range(count)]
    return [slot for i, slot in enumerate(all_slots) if i in places]


def _between(
    calls: Mapping[int, Collection[int]],
    gathered: Iterable[Sequence[int]],
    steps: Sequence[CompiledStep],
) -> dict[int, int]:
    """
    Returns, for the gathered parameters of the last layer, by slot, the steps that
    gather them again. `gathered` has the places of the gathers of each parameter.
    `calls` maps the places of the calls of layers to those of the gathers that they
    use. A layer is the last one if its parameters are gathered again before the next
    call.
    """
    kept: dict[int, int] = {}
    for places in gathered:
        for first, second in pairwise(places):
            before = max((call for call in calls if call < second), default=None)
            if before is not None and first in calls[before]:
                kept[steps[first].defined[0]] = second
    return kept


def _until(
    end: int, gathered: Iterable[Sequence[int]], steps: Sequence[CompiledStep]
) -> dict[int, int]:
    """
    Returns `end` for each parameter of the root, by slot. `gathered` has the places of
    the gathers of each parameter, of which all but the first take no memory.
    """
    kept: dict[int, int] = {}
    for first, *others in gathered:
        for place in (first, *others):
            step = steps[place]
            assert isinstance(step, OpStep)
            (result,) = step.results
            if place == first:
                kept[result.slot] = end
            else:
                step.results, step.workspace = (result._replace(size=0),), 0
    return kept


def gradient_buckets(
    function: FuncOp,
    types: Sequence[Attribute],
    arguments: Sequence[Allocation],
    device_map: DeviceMap,
) -> list[Allocation]:
    """
    Returns the memory of the buckets of a training step, if the profile says that the
    software is DDP: one allocation for each trained parameter that devices with
    different samples hold alike. These devices have different parts of the inputs.
    `function` has the roles of the arguments; `types` are their types, and `arguments`
    their memory.

    Parameters whose states are split over these devices (ZeRO 1) do not count: their
    gradients are not reduced in buckets. A gradient has the type of its parameter.
    """
    if not device_map.hardware.is_ddp:
        return []
    layouts = [layout_of(type_) for type_ in types]
    roles = argument_roles(function)
    data = {
        axis
        for role, layout in zip(roles, layouts, strict=True)
        if role in ("input", "label") and layout is not None
        for axis in _split_axes(layout, device_map)
    }
    trained = {
        *updated_arguments(function).values(),
        *parameters_of_gradients(function).values(),
    }
    split = {
        parameter
        for state, parameter in parameters_of_states(function).items()
        if (layout := layouts[state]) is not None
        and not data.isdisjoint(layout.split_axes)
    }
    return [
        arguments[i]
        for i, (role, layout) in enumerate(zip(roles, layouts, strict=True))
        if role == "parameter"
        and i in trained
        and i not in split
        and layout is not None
        and data
        and data.isdisjoint(layout.split_axes)
    ]


def _split_axes(layout: Layout, device_map: DeviceMap) -> list[str]:
    """Returns the axes of several devices over which `layout` splits a tensor."""
    sizes = device_map.meshes[layout.mesh].sizes
    return [axis for axis in layout.split_axes if sizes[axis] > 1]


def add_temporaries(steps: Sequence[CompiledStep]) -> None:
    """
    Adds the temporaries of all updates on a mesh to the workspace of the first one,
    when all gradients are still there. `steps` are those of a function, in order.
    States that are fetched from the host's memory do not count, as they are updated one
    by one.
    """
    first: dict[str | None, OpStep] = {}
    for step in steps:
        op = step.op
        if not isinstance(op, AdamFamilyOp) or isinstance(op.exp_avg_sq.owner, FetchOp):
            continue
        assert isinstance(step, OpStep)
        layout = layout_of(op.new_exp_avg_sq)
        at = first.setdefault(None if layout is None else layout.mesh, step)
        at.workspace = at.workspace + step.results[2].size
