"""
The settings as fields of the page. Names, help texts and choices come from the options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.frontends.models import SIZES
from distir.hardware.options import TargetOptions
from distir.options import DeclaredOption, options_of
from distir.pipelining.registry import SCHEDULES
from distir.planning.distribution.context import context_degrees
from distir.planning.distribution.experts import expert_degrees
from distir.program import Program, batch_size, entry_function
from distir.tools.arguments.declared import flag_of
from distir.tools.commands.build import MODELS
from distir.tools.explore.models import (
    OFF,
    ON,
    default_size,
    default_value,
    option_names,
)
from distir.tools.explore.state import State, is_list, plan_options
from distir.transforms.memory.checkpoint_policies import POLICIES
from distir.transforms.precision.options import PrecisionOptions

_LABELS = {
    "d": "data",
    "t": "tensor",
    "p": "pipeline",
    "c": "context",
    "e": "expert",
    "k": "micro-batches",
    "zero": "ZeRO stage",
    "checkpoint": "recomputation",
    "overlap": "overlap communication",
    "r": "ZeRO groups",
    "seq": "sequence length",
    "d_model": "width",
}
"""Labels that are clearer than the names of the options."""

_GROUPS = {
    **dict.fromkeys(("d", "t", "p", "c", "e"), "degrees"),
    **dict.fromkeys(("zero", "checkpoint", "k", "schedule", "overlap"), "how"),
}
"""The groups of options of a plan that are not among further options."""

_IN_TRAINING = ("zero", "checkpoint", "no_sync", "offload_states", "sharded_outputs")

_MOST_DEVICES = 1024
"""The most devices of the slider. More can be typed."""

_MOST_PARTS = 128
"""The most micro-batches, and the largest batch, of a slider."""

_CHOICES = {"checkpoint": POLICIES, "schedule": ("", *SCHEDULES)}
"""Values of options whose declarations name none."""


@dataclass(frozen=True)
class Field:
    """
    A field of the page.

    - `name`: the name in a URL; `label`, `help`: texts; `flag`: the option of the
      command, or "";
    - `kind`: `slider`, `select`, `switch`, `number` or `text`;
    - `group`: the part of the form: `model`, `cluster`, `degrees`, `how` or `more`;
    - `values`: the values of a slider or a select;
    - `value`: the present value; `default`: the value that URLs leave out;
    - `several`: whether a text holds several values, separated by spaces.
    """

    name: str
    label: str
    help: str
    kind: str
    group: str
    value: str
    default: str = ""
    values: Sequence[str] = ()
    several: bool = False
    flag: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the field as data for the page."""
        return {**vars(self), "values": list(self.values)}


def fields_of(state: State, module: ModuleOp, cluster: ClusterOp) -> list[Field]:
    """
    Returns the fields of the page for the settings `state`, with the program `module`
    and the cluster `cluster`. Fields that have no effect on the program are left out,
    unless they have a value.
    """
    return [
        *_model_fields(state),
        *_cluster_fields(state, cluster),
        *_plan_fields(state, module, state.devices or cluster.size),
    ]


def _model_fields(state: State) -> Iterator[Field]:
    choice, files = state.choice, state.setup.files
    models = [*files, *MODELS]
    help_ = "a program that was given, or a model of `distir build`"
    yield Field("model", "model", help_, "select", "model", choice.name, "", models)
    if choice.is_file:
        return
    model, given = choice.name, dict(choice.options)
    size = given.get("size", default_size(model))
    dtypes = {o.name: o for o in options_of(PrecisionOptions)}["dtype"].declared
    for name in option_names(model):
        option = MODELS[model].options.get(name)
        default = default_value(model, name, size)
        kind, values = "number", list[str]()
        if name == "size":
            kind, values = "select", list(SIZES[model])
        elif name == "dtype":
            kind, values = "select", list(map(str, dtypes.choices))
        elif name == "training" or (option is not None and option.type is None):
            kind, default = "switch", default or OFF
        elif name == "batch":
            kind, values = "slider", _powers(4096)
        shown = ("size", "batch", "seq", "training")
        yield Field(
            name,
            _label(name),
            option.help if option else "",
            kind,
            "model" if name in shown else "sizes",
            given.get(name, default),
            default,
            values,
        )


def _cluster_fields(state: State, cluster: ClusterOp) -> Iterator[Field]:
    by_name = {option.name: option for option in options_of(TargetOptions)}
    setup = state.setup
    yield Field(
        "cluster",
        "cluster",
        by_name["cluster"].declared.help,
        "select",
        "cluster",
        state.cluster,
        "",
        setup.clusters,
    )
    links, size = cluster.links, cluster.size
    may_grow = len(links) > 1 and links[-1].spans.value.data >= size
    most = max(_MOST_DEVICES, size) if may_grow else size
    values = [*_powers(size - 1), *(str(size * int(n)) for n in _powers(most // size))]
    own = str(state.devices or size)
    yield Field(
        "devices",
        "devices",
        by_name["devices"].declared.help,
        "slider",
        "cluster",
        own,
        str(size) if not state.devices or state.devices != size else "",
        values,
    )


def _plan_fields(state: State, module: ModuleOp, devices: int) -> Iterator[Field]:
    given = dict(state.plan)
    trains = Program(module).trains
    batch = batch_size(entry_function(module)) or 1
    degrees = {
        "c": list(map(str, context_degrees([module], devices))),
        "e": list(map(str, expert_degrees([module], devices))),
    }
    useless = {name for name, values in degrees.items() if len(values) == 1}
    useless |= {"context", "context_order"} if "c" in useless else set()
    useless |= {"token_dispatch", "expert_axes"} if "e" in useless else set()
    useless |= set() if trains else {*_IN_TRAINING}
    order = [*_GROUPS, *(n for n in plan_options() if n not in _GROUPS)]
    for name in order:
        option = plan_options()[name]
        if name in useless and name not in given:
            continue
        default = _default(option)
        values = given.get(name, (default,))
        kind, choices = _kind(option)
        if name == "k":
            kind, choices = "slider", _powers(min(batch, _MOST_PARTS))
        elif name in degrees and name not in useless:
            kind, choices = "slider", degrees[name]
        elif _GROUPS.get(name) == "degrees":
            kind, choices = "slider", _divisors(devices)
        elif kind == "select" and values[0] not in choices:
            choices = [*choices, values[0]]
        yield Field(
            name,
            _label(name),
            option.declared.help,
            kind,
            _GROUPS.get(name, "more"),
            " ".join(values),
            default,
            choices,
            is_list(option),
            flag_of(option),
        )


def _kind(option: DeclaredOption) -> tuple[str, Sequence[str]]:
    """Returns the kind of the field of an option, and the values of a select."""
    if option.type is bool:
        return "switch", ()
    choices = _CHOICES.get(option.name) or option.declared.choices
    if choices and not is_list(option):
        return "select", list(map(str, choices))
    return "number" if "int" in str(option.type) else "text", ()


def _default(option: DeclaredOption) -> str:
    if option.type is bool:
        return ON if option.default else OFF
    return str(option.default) if option.default not in (None, ()) else ""


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))


def _powers(most: int) -> list[str]:
    """Returns the powers of two up to `most`."""
    return [str(1 << i) for i in range(most.bit_length())]


def _divisors(number: int) -> list[str]:
    """Returns the divisors of a number of at most a hundred thousand."""
    return [str(i) for i in range(1, number + 1) if number % i == 0]
