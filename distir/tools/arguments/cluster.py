"""The arguments that say which devices there are, and what they reach."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distir.hardware.options import ProfileOptions, TargetOptions
from distir.options import options_of
from distir.tools.arguments.declared import add_option, add_options

if TYPE_CHECKING:
    from distir.dialects.device import ClusterOp


def add_cluster_arguments(parser: ArgumentParser, required: bool = True) -> None:
    """Declares the cluster that a program is distributed over, and its size."""
    cluster, devices = options_of(TargetOptions)
    add_option(parser, cluster, optional=True, required=required)
    add_option(parser, devices)


def add_profile_argument(parser: ArgumentParser) -> None:
    """Declares `--profile`: what the devices of the cluster reach in practice."""
    add_options(parser, ProfileOptions)


def chosen_profiles(given: Sequence[str], cluster: ClusterOp) -> tuple[str, ...]:
    """
    Returns the profiles that a command uses for a cluster: those that the user named, or
    else those that the cluster names. Says so where it names none that are of use. Raises
    DistIRError.
    """
    from distir.interpreters.simulator.profiles.files import ProfileChoice
    from distir.tools.reports.reporting import note

    choice = ProfileChoice.of(given, cluster)
    if choice.lacking:
        note(
            f"{choice.lacking}: times are those of data sheets, which no machine reaches; "
            f"--profile names what devices reach in practice (`distir calibrate` measures it)"
        )
    return choice.names
