"""
The command-line options that select a part of the grid of plans, for search and tuning.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError

from distir.options import options_of
from distir.planning.plans.options import SearchOptions
from distir.tools.arguments.declared import add_option, add_options
from distir.tools.arguments.types import positive_integers


def _degrees(text: str) -> tuple[int, int, int]:
    found = positive_integers(text)
    if len(found) != 3:
        raise ArgumentTypeError(f"{text!r} is not of the form D,T,P")
    return found[0], found[1], found[2]


_NOT_OF_THE_GRID = ("profile", "expert_imbalance", "jobs")


def add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Adds the options that select a part of the grid of plans to `parser`: `--degrees`,
    and the options of `SearchOptions` except `jobs` and the assumptions of the
    simulation.
    """
    grid = parser.add_argument_group("the grid")
    for option in options_of(SearchOptions):
        if option.name in _NOT_OF_THE_GRID:
            continue
        add_option(grid, option)
        if option.name == "world_size":
            grid.add_argument(
                "--degrees",
                type=_degrees,
                action="append",
                default=[],
                metavar="D,T,P",
                help="only these data-parallel, tensor-parallel and pipeline degrees; may be "
                "repeated",
            )


def add_jobs_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--jobs`, the number of processes that simulate plans, to `parser`."""
    add_options(parser, SearchOptions, ("jobs",))
