"""Converts the options of any training system to settings, and settings to options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from distir.errors import DistIRError
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.table import OptionRule, OptionTable


@dataclass
class Document:
    """
    The options in a file.

    - `path`: the name of the file, for messages;
    - `values`: the options by name;
    - `where`: for each option, its file and line, for messages about the option;
    - `devices`, `per_node`: the devices of the run and of a node, or 0 if not given;
    - `launch`: other facts about starting the run, kept for writing;
    - `notes`: remarks for the user.
    """

    path: str
    values: dict[str, Any]
    where: dict[str, str] = field(default_factory=dict[str, str])
    devices: int = 0
    per_node: int = 0
    launch: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: list[str] = field(default_factory=list[str])

    def place(self, name: str) -> str:
        """Returns the start of messages about the option `name`: its file and line."""
        return self.where.get(name, f"{self.path}: {name}")


@dataclass(frozen=True)
class Read:
    """
    The settings read from a file, and the rest of its options.

    - `kept`: options without a setting in DistIR, kept unchanged for writing;
    - `said`: the options that rules read, with their values in the file;
    - `launch`: facts about starting the run;
    - `ignored`: the names of options that do not affect the prediction;
    - `unknown`: the names of options that DistIR's table of the system lacks;
    - `notes`: remarks for the user.
    """

    settings: RunSettings
    kept: dict[str, Any]
    said: dict[str, Any]
    launch: dict[str, Any]
    ignored: list[str]
    unknown: list[str]
    notes: list[str]


_SIZES = ("ffn", "head_dim", "kv_heads", "expert_ffn", "positions")
"""Settings that are derived from other settings if they are not given."""


class System(ABC):
    """A training system: the table of its options and the format of its files."""

    name: ClassVar[str]
    table: ClassVar[OptionTable]
    suffixes: ClassVar[tuple[str, ...]] = ()
    """The suffixes of the system's files; empty if any suffix is accepted."""

    @abstractmethod
    def parse(self, text: str, path: str, given: Mapping[str, str]) -> Document:
        """
        Returns the options in the text of a file. `path` names the file in messages.
        `given` are values of variables or options from the user, which override the
        file. Raises DistIRError for a text that cannot be read.
        """

    @abstractmethod
    def render(
        self,
        values: Mapping[str, Any],
        settings: RunSettings,
        launch: Mapping[str, Any],
    ) -> str:
        """
        Returns the text of a file with the options `values`. `launch` has the facts
        about starting the run that `parse` found.
        """

    def option(self, name: str) -> str:
        """Returns the option `name` in the spelling of the system's users."""
        return name

    def started(self, document: Document, settings: RunSettings) -> RunSettings:
        """
        Returns `settings` with additions from the document. Called before the rules are
        applied, so that rules can use these additions.
        """
        return settings

    def settle(self, document: Document, settings: RunSettings) -> RunSettings:
        """
        Returns `settings` with the values that the system derives from other settings.
        Called after all rules are applied.
        """
        return settings

    def vocabulary(self, settings: RunSettings) -> int:
        """
        Returns the number of rows of the embedding. Some systems round the size of the
        vocabulary up.
        """
        return settings.vocab

    def derived(self, settings: RunSettings) -> Mapping[str, Any]:
        """
        Returns options that are computed from the settings and are always written.
        """
        return {}

    def check(self, settings: RunSettings) -> list[str]:
        """
        Returns remarks on differences between the plan and its execution by the system.
        Raises DistIRError if the system cannot run the plan.
        """
        return []

    def read(self, document: Document, more: Mapping[str, Any]) -> Read:
        """
        Returns the settings in a file. `more` are settings from the user, which
        override the file. Raises DistIRError, with file, line and option, if a value is
        wrong or cannot be predicted.
        """
        table, named = self.table, self.table.named()
        of_rules = table.of_rules()
        facts: dict[str, Any] = {
            row.fact: row.default for row in table.rows if row.default is not None
        }
        said: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        ignored: list[str] = []
        unknown: list[str] = []
        for name, value in document.values.items():
            where = document.place(name)
            if name in named:
                if value is not None and value != "":
                    facts[named[name].fact] = named[name].read(value, where)
                elif named[name].is_switch:
                    facts[named[name].fact] = named[name].read(True, where)
                continue
            if name in of_rules:
                said[name] = value
                continue
            if (why := table.refusal(name)) and value not in (
                None,
                False,
                0,
                "0",
                "none",
            ):
                raise DistIRError(f"{where} cannot be predicted: {why}")
            kept[name] = value
            if not table.is_harmless(name) and not why:
                if meant := table.suggestion(name):
                    raise DistIRError(
                        f"{where} is not an option of {self.name}; "
                        f"{meant.replace('--', '').strip()}"
                    )
                unknown.append(name)
            else:
                ignored.append(name)
        settings = replace(RunSettings(), **facts)
        if document.devices:
            settings = replace(
                settings, devices=document.devices, per_node=document.per_node
            )
        settings = replace(settings, **{n: v for n, v in more.items() if v})
        settings = self.started(document, settings)
        for rule in table.rules:
            known = {**rule.options, **{n: said[n] for n in rule.options if n in said}}
            try:
                settings = replace(settings, **rule.read(known, settings))
            except DistIRError as error:
                culprit = next((n for n in rule.options if n in said), "")
                place = document.place(culprit).rsplit(":", 1)[0]
                raise DistIRError(f"{place}: {error}") from None
        settings = replace(settings, **{n: v for n, v in more.items() if v})
        settings = self.settle(document, settings).completed()
        settings.check(document.path)
        return Read(
            settings, kept, said, document.launch, ignored, unknown, document.notes
        )

    def write(
        self, settings: RunSettings, kept: Mapping[str, Any], said: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """
        Returns the options for `settings`, and remarks on differences between the plan
        and its execution by the system. `kept` and `said` are the fields of a `Read` of
        the same system. Raises DistIRError if the system cannot run the plan.
        """
        remarks = self.check(settings)
        says_axes = any("expert_axes" in rule.facts for rule in self.table.rules)
        if settings.expert_axes != "e" and not says_axes:
            raise DistIRError(
                f"{self.name} has no option that deals experts out over the axes "
                f"{settings.expert_axes!r} of attention; use expert_axes=e"
            )
        keeps = settings.t > 1 and settings.sequence_parallel and settings.keep_gathered
        if keeps and all(row.fact != "keep_gathered" for row in self.table.rows):
            raise DistIRError(
                f"{self.name} has no option that keeps gathered activations; use "
                f"keep_gathered=false"
            )
        if settings.c == 1:  # then it is of no matter
            defaults = {row.fact: row.default for row in self.table.rows}
            context = defaults.get("context", settings.context)
            settings = replace(settings, context=context)
        values: dict[str, Any] = {}
        usual = replace(
            settings, ffn=0, head_dim=0, kv_heads=0, expert_ffn=0, positions=0
        )
        usual = usual.completed()
        for row in self.table.rows:
            setting = getattr(settings, row.fact)
            is_usual = row.default == 0 and setting == getattr(usual, row.fact)
            if row.fact == "ffn" and settings.mlp == "swiglu":
                is_usual = False  # systems round it differently
            if is_usual and row.fact in _SIZES and not row.always:
                continue
            value = row.write(setting)
            if value is None and setting != row.default:
                raise DistIRError(
                    f"{self.name} has no {self.option(row.key)} for {row.fact} = {setting}"
                )
            if (setting != row.default or row.always) and value is not None:
                values[row.key] = value
        for rule in self.table.rules:
            values |= self._ruled(rule, settings, said)
        values |= self.derived(settings)
        return values | {n: v for n, v in kept.items() if n not in values}, remarks

    @staticmethod
    def _ruled(
        rule: OptionRule, settings: RunSettings, said: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """
        Returns the options that a rule writes for `settings`. If `said` holds options
        that were read from a file, and these options already give `settings`, they are
        returned unchanged.
        """
        before = {name: said[name] for name in rule.options if name in said}
        if not before:
            return rule.write(settings)
        try:
            read = rule.read({**rule.options, **before}, settings)
        except DistIRError:
            read = None
        if read is not None and all(
            getattr(settings, name) == value for name, value in read.items()
        ):
            return before
        return rule.write(settings)
