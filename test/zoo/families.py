"""All families of the zoo."""

from __future__ import annotations

from importlib import import_module

from zoo.model import FAMILIES, Family

_MODULES = ("text", "senses", "convolutional", "own")


def families() -> dict[str, Family]:
    """Returns the families by name, those of one kind together."""
    for name in _MODULES:
        import_module(f"zoo.{name}")
    return FAMILIES
