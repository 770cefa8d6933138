"""The options that only `distir explore` has."""

from __future__ import annotations

from dataclasses import dataclass

from distir.options import option

PORT = 8642


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """Options of the page's server."""

    port: int = option(
        PORT,
        f"the port of 127.0.0.1 that the page is at (default {PORT}; 0: any free one)",
        metavar="N",
        kind="non_negative_integer",
    )
    browser: bool = option(
        True,
        "open the page in a browser where there is a desktop (default), or only print "
        "its address",
    )
