"""A command with one of its files damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fuzz.damage import mutated_text
from support.random_programs import Draw


@dataclass(frozen=True)
class Scenario:
    """
    A command, and one of its files that is damaged. `others` are the files beside it, by
    name; `tool` is `distir` or `distir-opt`.
    """

    name: str
    damaged: str
    content: bytes
    arguments: tuple[str, ...]
    mutate: Callable[[Draw, bytes], bytes] = mutated_text
    others: dict[str, bytes] = field(default_factory=dict[str, bytes])
    tool: str = "distir"
