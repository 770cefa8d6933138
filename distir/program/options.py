"""The option that chooses an entry of a program with several entries."""

from __future__ import annotations

from dataclasses import dataclass

from distir.options import option


@dataclass(frozen=True, kw_only=True)
class EntryOptions:
    """The option for the entry of a program that a command works on."""

    entry: str | None = option(
        None,
        "of a program with several entries, as --serve makes them, the one that is meant: "
        "prefill or decode; of another module, the public function that is the program",
        metavar="NAME",
    )
