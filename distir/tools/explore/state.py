"""The settings of the page, as a URL and as a command line."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_origin
from urllib.parse import parse_qsl, urlencode

from distir.errors import DistIRError, did_you_mean
from distir.hardware import cluster_names
from distir.options import DeclaredOption, options_of
from distir.planning.distribution.options import AXES, DistributionOptions
from distir.tools.arguments.declared import flag_of
from distir.tools.explore.models import (
    OFF,
    ON,
    ModelChoice,
    option_names,
    page_options,
    read_choice,
)

_NOT_HERE = ("cluster", "profile", "schedule_file")
"""
Options of `distribute` that the page does not have. A URL must not make it read files.
"""

_OVERLAP = "overlap"
"""The option that is on, off, or a list of kinds of communication."""

LONGEST = 4000
"""The most characters of a URL's settings."""


def plan_options() -> dict[str, DeclaredOption]:
    """Returns the options of `distribute` on the page, by name, degrees first."""
    declared = {o.name: o for o in options_of(DistributionOptions)}
    first = (*AXES, "p", "k")
    rest = (name for name in declared if name not in (*first, *_NOT_HERE))
    return {name: declared[name] for name in (*first, *rest)}


def is_list(option: DeclaredOption) -> bool:
    """Whether an option may be repeated."""
    return get_origin(option.type) is tuple


@dataclass(frozen=True)
class Setup:
    """
    The settings from the command line, which no URL changes.

    - `files`: the names of the given programs;
    - `cluster`: the cluster for URLs that name none;
    - `own_cluster`: the file of a cluster, or "";
    - `profile`, `entry`: the options of the same name of `distir simulate`.
    """

    files: Sequence[str]
    cluster: str
    own_cluster: str = ""
    profile: tuple[str, ...] = ()
    entry: str | None = None

    @property
    def clusters(self) -> list[str]:
        """The names of the clusters that a URL may name."""
        own = [self.own_cluster] if self.own_cluster else []
        return [*own, *cluster_names()]


@dataclass(frozen=True)
class State:
    """
    The settings of the page.

    - `choice`: the program; `cluster`, `devices`: as on the command line (0: not
      given);
    - `plan`: the options of `distribute` that differ from their defaults, by name, with
      their text in a URL, in the order of the form.
    """

    setup: Setup = field(repr=False)
    choice: ModelChoice
    cluster: str
    devices: int
    plan: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def query(self) -> str:
        """The settings as the query of a URL. Equal settings have equal queries."""
        pairs = [("model", self.choice.name), *self.choice.options]
        pairs.append(("cluster", self.cluster))
        if self.devices:
            pairs.append(("devices", str(self.devices)))
        pairs += [(name, value) for name, values in self.plan for value in values]
        return urlencode(pairs)

    @property
    def problem(self) -> tuple[object, ...]:
        """
        A key that two settings have in common if their plans can be compared with each
        other.
        """
        return self.choice, self.cluster, self.devices

    def _words(self) -> list[str]:
        words = [self.choice.file, "--cluster", self.cluster]
        if self.devices:
            words += ["--devices", str(self.devices)]
        for name, values in self.plan:
            option = plan_options()[name]
            words += _written(option, values)
        for profile in self.setup.profile:
            words += ["--profile", profile]
        return words

    @property
    def commands(self) -> dict[str, str]:
        """The settings as commands: `distir simulate` and `distir distribute`."""
        entry = ["--entry", self.setup.entry] if self.setup.entry else []
        profile = self.setup.profile
        words = self._words()
        plain = words[: len(words) - 2 * len(profile)]
        simulate = shlex.join(["distir", "simulate", *words, *entry])
        distribute = shlex.join(["distir", "distribute", *plain, "-o", "dist.mlir"])
        made = f"{self.choice.command}\n" if self.choice.command else ""
        return {"simulate": made + simulate, "distribute": made + distribute}

    def arguments(self) -> Namespace:
        """
        Returns the settings as the parsed arguments of `distir simulate`. Raises
        DistIRError for values that an option does not allow.
        """
        options: dict[str, Any] = {"cluster": self.cluster}
        if self.devices:
            options["devices"] = self.devices
        for name, values in self.plan:
            options[name] = _python(plan_options()[name], values)
        if self.setup.profile:
            options["profile"] = list(self.setup.profile)
        if self.setup.entry:
            options["entry"] = self.setup.entry
        return _parsed(self.choice.file, options)


def _parsed(program: str, options: Mapping[str, Any]) -> Namespace:
    return page_options("simulate", [program], options)


def _written(option: DeclaredOption, values: Sequence[str]) -> list[str]:
    """Returns an option with the given values as words of a command."""
    flag = flag_of(option)
    if option.name == _OVERLAP:
        return [flag] if values == (ON,) else [flag, *values]
    if option.type is bool:
        # An option that is on by default has a second flag that turns it off.
        off = f"--no-{flag.removeprefix('--')}"
        return [flag if values == (ON,) else off]
    if option.declared.separator:
        return [flag, option.declared.separator.join(values)]
    # Joined where a value could be taken for an option.
    return [
        word
        for value in values
        for word in ([f"{flag}={value}"] if value.startswith("-") else [flag, value])
    ]


def _python(option: DeclaredOption, values: Sequence[str]) -> Any:
    """Returns the values of an option, given as text, as a Python value."""
    if option.type is bool and values[0] in (ON, OFF):
        return values[0] == ON
    if option.type is bool and option.name != _OVERLAP:
        raise DistIRError(f"{option.name} is {ON} or {OFF}, not {values[0]!r}")
    return list(values) if is_list(option) else values[0]


def state_of(query: str, setup: Setup) -> State:
    """
    Returns the settings in the query of a URL. Settings that are not in the query have
    their defaults. Raises DistIRError for unknown settings and for values that are not
    allowed.
    """
    if len(query) > LONGEST:
        raise DistIRError(
            f"the settings have {len(query)} characters, but at most {LONGEST} are read"
        )
    given: dict[str, list[str]] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        given.setdefault(name, []).append(value)
    options = plan_options()
    for name, values in given.items():
        for value in values:
            if not value.isprintable():
                raise DistIRError(f"{name} holds a character that cannot be printed")
        if len(values) > 1 and not (name in options and is_list(options[name])):
            raise DistIRError(f"{name} is given {len(values)} times; give it once")
    model = given.pop("model", [next(iter(setup.files), "gpt")])[0]
    cluster = given.pop("cluster", [setup.cluster])[0]
    if cluster not in setup.clusters:
        raise DistIRError(
            f"there is no cluster {cluster!r} here; "
            f"{did_you_mean(cluster, setup.clusters)}choose from "
            f"{', '.join(setup.clusters)}"
        )
    devices = given.pop("devices", [""])[0]
    plan = {name: given.pop(name) for name in options if name in given}
    _check_names(given, model, setup)
    own = {name: values[0] for name, values in given.items()}
    choice = read_choice(model, own, setup.files)
    if devices:
        _parsed("model.mlir", {"devices": devices})
    found = State(
        setup,
        choice,
        cluster,
        int(devices or 0),
        tuple((name, tuple(values)) for name, values in plan.items()),
    )
    arguments = found.arguments()  # checks the values
    kept = tuple(
        (name, values)
        for name, values in found.plan
        if not _is_default(options[name], arguments)
    )
    return State(setup, choice, cluster, found.devices, kept)


def _is_default(option: DeclaredOption, arguments: Namespace) -> bool:
    value = getattr(arguments, option.name)
    value = tuple(value) if isinstance(value, list) else value
    default: Any = () if option.name == _OVERLAP else option.default
    return bool(value == default)


def _check_names(given: Mapping[str, object], model: str, setup: Setup) -> None:
    """Raises DistIRError if a setting in a URL does not exist."""
    from distir.tools.commands.build import MODELS

    own = list(option_names(model)) if model in MODELS else []
    for name in given:
        if name not in own:
            known = ["model", "cluster", "devices", *plan_options(), *own]
            of_file = " for a program from a file" if model in setup.files else ""
            raise DistIRError(
                f"there is no setting {name!r}{of_file}; "
                f"{did_you_mean(name, known)}".rstrip("; ")
            )


def query_of(arguments: Namespace, setup: Setup) -> str:
    """
    Returns the query of a URL with the settings in the arguments of `distir explore`;
    "" if there are none. Raises DistIRError for options that the page does not have.
    """
    if arguments.schedule_file:
        raise DistIRError(
            "the page has no --schedule-file; `distir simulate` does, or choose a "
            "--schedule by its name"
        )
    pairs: list[tuple[str, str]] = []
    if arguments.devices:
        pairs.append(("devices", str(arguments.devices)))
    for name, option in plan_options().items():
        value = getattr(arguments, name)
        if _is_default(option, arguments):
            continue
        if name == _OVERLAP:
            value = ON if "all" in value else ",".join(value)
        if isinstance(value, bool):
            value = ON if value else OFF
        values: Sequence[Any] = value if isinstance(value, list | tuple) else [value]  # pyright: ignore[reportUnknownVariableType]
        pairs += [(name, str(one)) for one in values]
    return state_of(urlencode(pairs), setup).query if pairs else ""
