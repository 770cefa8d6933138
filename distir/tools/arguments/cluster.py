"""The command-line arguments for the cluster and for the profiles of its devices."""

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
    """
    Adds the arguments for the cluster and its number of devices to `parser`. With
    `required`, the cluster must be given.
    """
    cluster, devices = options_of(TargetOptions)
    add_option(parser, cluster, optional=True, required=required)
    add_option(parser, devices)


def add_profile_argument(parser: ArgumentParser) -> None:
    """
    Adds `--profile` to `parser`. A profile has the measured performance of devices.
    """
    add_options(parser, ProfileOptions)


def chosen_profiles(given: Sequence[str], cluster: ClusterOp) -> tuple[str, ...]:
    """
    Returns the profiles that a command uses for `cluster`: the profiles in `given`,
    which the user named, or else the profiles that the cluster names. Prints a note if
    there are no profiles. Raises DistIRError if a profile cannot be read.
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
