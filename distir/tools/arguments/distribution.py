"""The options of `distir distribute`, which other commands also take."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distir.options import DeclaredOption, options_of
from distir.planning.distribution.options import AXES, DistributionOptions
from distir.tools.arguments.declared import add_option, default_of, flag_of

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


_ALL = "all"
"""The value of `--overlap` that stands for all kinds of communication."""


def _kinds(text: str) -> list[str]:
    """
    Returns the kinds of communication in a comma-separated text. Raises
    ArgumentTypeError for an unknown kind.
    """
    from distir.transforms.overlap.kinds import KINDS

    found = text.split(",")
    for name in found:
        if name not in KINDS:
            raise ArgumentTypeError(
                f"there is no kind of communication {name!r}; choose from {','.join(KINDS)}"
            )
    return found


_OVERLAP = "overlap"
"""The option that sets both fields `overlap` and `overlapped`."""

_NOT_HERE = (_OVERLAP, "cluster", "profile")


def _options() -> list[DeclaredOption]:
    """
    Returns the declared options of `distribute`, parallel degrees first. Options that
    the commands declare themselves, such as the cluster, are left out.
    """
    degrees = (*AXES, "p", "k")
    declared = {option.name: option for option in options_of(DistributionOptions)}
    rest = [name for name in declared if name not in (*degrees, *_NOT_HERE)]
    return [declared[name] for name in (*degrees, *rest)]


def add_distribution_arguments(parser: ArgumentParser) -> None:
    """Adds the options of `distribute` to `parser`, except for the cluster."""
    for option in _options():
        add_option(parser, option)
    declared = {option.name: option for option in options_of(DistributionOptions)}
    add_option(
        parser,
        declared[_OVERLAP],
        action="extend",
        type=_kinds,
        nargs="?",
        const=[_ALL],
        default=[],
    )


def given_options(arguments: Namespace) -> list[str]:
    """
    Returns the spellings of the options of `distribute` whose value in `arguments`
    differs from the default.
    """
    given = [] if arguments.devices is None else ["--devices"]
    for option in _options():
        if getattr(arguments, option.name) != default_of(option):
            given.append(flag_of(option))
    return [*given, "--overlap"] if arguments.overlap else given


def written_options(options: DistributionOptions, always: str = "") -> list[str]:
    """
    Returns the options of `distribute` as command-line text. Options with their default
    value are left out. `always` holds the one-letter names of options that are always
    included, in front of all others.
    """
    declared = {option.name: option for option in options_of(DistributionOptions)}
    rest = (*AXES, "p", "k", *(name for name in declared if name not in _NOT_HERE))
    found: list[str] = []
    for name in dict.fromkeys((*always, *rest)):
        option, value = declared[name], getattr(options, name)
        if value == option.default and name not in always:
            continue
        flag = flag_of(option)
        if isinstance(value, bool):
            found.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            values = value if isinstance(value, tuple) else (value,)
            found += [f"{flag} {one}" for one in values]
    kinds = ",".join(options.overlapped)
    return [*found, f"--overlap {kinds}".rstrip()] if options.overlap else found


def check_cluster_given(arguments: Namespace) -> None:
    """Raises DistIRError if `arguments` has options of `distribute` but no cluster."""
    from distir.errors import DistIRError

    asked = given_options(arguments)
    if asked and arguments.cluster is None:
        raise DistIRError(
            f"{' and '.join(asked)} distributes a sequential program; say over which "
            f"cluster with --cluster"
        )


def read_as_asked(arguments: Namespace) -> ModuleOp:
    """
    Reads the program that was given to a command, distributes it if a cluster was
    given, and returns its chosen entry. Raises ParseError, VerifyException or
    DistIRError if the program cannot be read or distributed.
    """
    from distir.tools.files import read_program
    from distir.tools.reports.reporting import progress
    from distir.transforms.expert_shards import assume_imbalance

    with progress(f"reading {arguments.program}"):
        module = read_program(arguments.program)
    assume_imbalance(module, getattr(arguments, "expert_imbalance", None))
    return distributed_entry(
        module,
        arguments,
        distributed_as_asked if arguments.cluster is not None else None,
    )


def distributed_entry(
    module: ModuleOp,
    arguments: Namespace,
    distribute: Callable[[ModuleOp, Namespace], None] | None,
) -> ModuleOp:
    """
    Returns the entry of a program that the option `--entry` in `arguments` names. If
    `distribute` is given, this function first distributes all entries.
    """
    from distir.program import entry_points
    from distir.program.entries import chosen_entry

    together = bool(entry_points(module))
    if not together:
        module = chosen_entry(module, arguments.entry)
    if distribute is not None:
        distribute(module, arguments)
    return chosen_entry(module, arguments.entry) if together else module


def distributed_as_asked(module: ModuleOp, arguments: Namespace) -> None:
    """
    Distributes a program in place and prints the notes that passes left for the user.
    `arguments` has the cluster and the options of `distribute`. Raises DistIRError for
    options that contradict each other or do not suit the program.
    """
    from distir.planning.annotations import read_notes
    from distir.tools.reports.reporting import note

    distribute_as_asked(module, arguments)
    for text in read_notes(module):
        note(text)


def distribution_options(
    arguments: Namespace, profiles: tuple[str, ...] = ()
) -> DistributionOptions:
    """
    Returns the options of `distribute` in `arguments`, without the cluster. `profiles`
    are the profiles of the cluster's devices.
    """
    kinds = arguments.overlap
    given = {option.name: getattr(arguments, option.name) for option in _options()}
    options: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in given.items()
    }
    return DistributionOptions(
        **options,
        overlap=bool(kinds),
        overlapped=() if _ALL in kinds else tuple(kinds),
        profile=profiles,
    )


def distribute_as_asked(module: ModuleOp, arguments: Namespace) -> None:
    """
    Distributes a program in place. `arguments` has the cluster and the options of
    `distribute`. Raises DistIRError for options that contradict each other or do not
    suit the program.
    """
    from distir.tools.reports.reporting import progress

    with progress("distributing"):
        distribute_silently(module, arguments)


def distribute_silently(module: ModuleOp, arguments: Namespace) -> None:
    """
    Distributes a program in place, without showing progress. `arguments` has the
    cluster and the options of `distribute`. Raises DistIRError for options that
    contradict each other or do not suit the program.
    """
    from distir.errors import DistIRError
    from distir.hardware import load_cluster
    from distir.interpreters.simulator.profiles.files import ProfileChoice
    from distir.passes.distribute import DistributePass
    from distir.planning.plans.programs import replace_cluster
    from distir.tools.files import apply_passes

    cluster = load_cluster(arguments.cluster, arguments.devices)
    if module.body.block.first_op is None:
        raise DistIRError(f"{arguments.program} holds no program")
    replace_cluster(module, cluster)
    # Without --profile, overlap is judged with the profiles that `simulate` uses.
    named = getattr(arguments, "profile", None)
    profiles: tuple[str, ...] = ()
    if named is not None or arguments.overlap:
        profiles = ProfileChoice.of(named or (), cluster).names
    options = distribution_options(arguments, profiles)
    apply_passes(
        module,
        DistributePass.of(replace(options, cluster=cluster.sym_name.data)),
    )
