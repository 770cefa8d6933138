"""The options of `distir distribute`, which several commands take."""

from __future__ import annotations

from argparse import (
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
)
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from distir.tools.arguments import positive_integer

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


_ALL = "all"
"""The value of `--overlap` if none is given."""


def _kinds(text: str) -> list[str]:
    """Parses kinds of communication, separated by commas."""
    from distir.transforms.overlap.kinds import KINDS

    found = text.split(",")
    for name in found:
        if name not in KINDS:
            raise ArgumentTypeError(
                f"there is no kind of communication {name!r}; choose from {','.join(KINDS)}"
            )
    return found


def _meshes(text: str) -> list[str]:
    """Parses the meshes of stages, separated by semicolons."""
    return text.split(";")


_OPTIONS: dict[str, dict[str, Any]] = {
    "-r": dict(
        type=positive_integer,
        default=1,
        help="groups of data-parallel devices that each hold all that --zero splits over their "
        "-d devices, such as nodes (default 1)",
    ),
    "-d": dict(
        type=positive_integer,
        default=1,
        help="data-parallel degree (default 1)",
    ),
    "-e": dict(
        type=positive_integer,
        default=1,
        help="expert-parallel degree: experts are dealt out, and tokens, which -e splits like "
        "-d, are sent to them (default 1)",
    ),
    "-c": dict(
        type=positive_integer,
        default=1,
        help="context-parallel degree: sequences are split, through attention (default 1)",
    ),
    "-t": dict(
        type=positive_integer,
        default=1,
        help="tensor-parallel degree (default 1)",
    ),
    "-p": dict(
        type=positive_integer,
        default=1,
        help="pipeline ranks (default 1)",
    ),
    "-k": dict(
        type=positive_integer,
        default=1,
        help="micro-batches that a batch is split into (default 1); with one pipeline "
        "rank they accumulate gradients",
    ),
    "--schedule": dict(
        default="",
        metavar="NAME",
        help="gpipe, 1f1b (default of a training step), interleaved-1f1b, zb-h1, "
        "interleaved-zero-bubble, zbv, dualpipev, or forward (default of inference)",
    ),
    "--chunks": dict(
        type=positive_integer,
        metavar="N",
        help="pipeline stages per rank (default: the fewest that the schedule can have)",
    ),
    "--schedule-file": dict(
        default="",
        metavar="FILE.csv",
        help="a schedule in the CSV format of PyTorch's pipelining, a line per rank",
    ),
    "--stages": dict(
        action="append",
        default=[],
        metavar="SCOPE",
        help="the scope that the next pipeline stage begins with, once for each stage but "
        "the first; or `uniform`, equal numbers of layers, or `search`, the fastest that is "
        "found (default: equal work)",
    ),
    "--stage-meshes": dict(
        action="extend",
        type=_meshes,
        default=[],
        metavar="d=N,t=N;...",
        help="the degrees of each of the -p pipeline ranks, where they are to differ: "
        "d=2,t=2;t=2 has 4 devices for the first and 2 for the second; instead of -d and -t",
    ),
    "--blocking-sends": dict(
        action="store_true",
        help="devices wait for each other in a send instead of computing meanwhile",
    ),
    "--shard": dict(
        action="append",
        default=[],
        metavar="NAME:DIM=AXIS[:RUN]",
        help="split dimension DIM of argument NAME over mesh axis AXIS (r, d, e, c or t), in runs "
        "of RUN elements; may be repeated. Refused where it cannot be done",
    ),
    "--whole": dict(
        action="append",
        default=[],
        metavar="NAME",
        help="keep argument NAME (with *) whole on every device; may be repeated",
    ),
    "--pad": dict(
        action="append",
        default=[],
        choices=("heads",),
        help="pad heads of attention with heads of zeros where -t does not divide them, so "
        "that its devices share the attention, instead of keeping it whole on each",
    ),
    "--zero": dict(
        type=int,
        choices=(0, 1, 2, 3),
        default=0,
        help="ZeRO stage of a training step: split optimizer states (1), gradients (2) "
        "and parameters (3) over the data-parallel devices, -d and -e",
    ),
    "--no-sync": dict(
        action="store_true",
        help="with --zero 2 and 3, add up the whole gradients of all -k micro-batches and reduce "
        "them once (PyTorch's no_sync), instead of scattering those of each: less communication, "
        "more memory",
    ),
    "--checkpoint": dict(
        default="none",
        metavar="POLICY",
        help="what a training step computes again in its backward pass: nothing (none), what "
        "its layers' gradients need (full), all of the layers as PyTorch does (whole), what "
        "attention computes between its matrix products (selective), or all but the results "
        "of products and attention (products); or what it keeps in the host's memory meanwhile "
        "(offload). full:0.5 recomputes every second layer, full:6/6+2/6 all of the first 6 "
        "layers and 2 of the next 6, full:6/6+2/6:products the others by products; save:onnx.MatMul+train.attention "
        "keeps the results of these ops alone, recompute:onnx.Gelu those of all others",
    ),
    "--offload-states": dict(
        action="store_true",
        help="keep the optimizer's states (moments, copies in f32) in the memory of the host; "
        "a device fetches them for the update of their parameters. For activations see "
        "--checkpoint offload",
    ),
    "--sequence-parallel": dict(
        action="store_true",
        help="split sequences over the tensor-parallel devices between the blocks",
    ),
    "--token-dispatch": dict(
        choices=("auto", "gather", "all-to-all"),
        default="auto",
        help="the way of tokens to the experts of the other -e devices: all tokens are "
        "gathered, or each goes to the devices of its experts alone, by all-to-all; by default "
        "the one that sends less",
    ),
    "--context": dict(
        choices=("gather", "ring"),
        default="gather",
        help="how keys and values come to the queries of the other -c devices: all are "
        "gathered (default), or blocks go around while devices compute, which takes less "
        "memory",
    ),
    "--context-order": dict(
        choices=("contiguous", "cyclic"),
        default="contiguous",
        help="which tokens of a sequence each of the -c devices has: neighbours, or, dealt "
        "out in turn, some from everywhere, so that a causal mask leaves equal work to all",
    ),
    "--overlap": dict(
        action="extend",
        type=_kinds,
        nargs="?",
        const=[_ALL],
        default=[],
        metavar="KIND,...",
        help="run communication while devices compute, where the simulator says that it "
        "is faster and fits into memory: reductions of gradients (dp), of activations (tp), "
        "sends between stages (pp), gathering of parameters (params); by default all of these",
    ),
    "--buckets": dict(
        action=BooleanOptionalAction,
        default=True,
        help="send neighbouring tensors, such as the gradients of a layer, in one message "
        "(default), or each tensor in a message of its own",
    ),
}
"""The options of `distribute` except for the cluster, as argparse takes them."""


def add_distribution_arguments(parser: ArgumentParser) -> None:
    """Declares the options of `distribute`, except for the cluster."""
    for option, settings in _OPTIONS.items():
        parser.add_argument(option, **settings)


def given_options(arguments: Namespace) -> list[str]:
    """
    Returns the options of `distribute` that a command was given, as the user wrote them.
    """
    given = [] if arguments.devices is None else ["--devices"]
    for option, settings in _OPTIONS.items():
        default = False if settings.get("action") == "store_true" else None
        value = getattr(arguments, option.lstrip("-").replace("-", "_"))
        if value != settings.get("default", default):
            given.append(option)
    return given


def check_cluster_given(arguments: Namespace) -> None:
    """Refuses options of `distribute` without a cluster. Raises DistIRError."""
    from distir.errors import DistIRError

    asked = given_options(arguments)
    if asked and arguments.cluster is None:
        raise DistIRError(
            f"{' and '.join(asked)} distributes a sequential program; say over which "
            f"cluster with --cluster"
        )


def read_as_asked(arguments: Namespace) -> ModuleOp:
    """
    Returns the program that a command was given, distributed over the cluster that it was
    given, if there is one. Raises ParseError, VerifyException or DistIRError.
    """
    from distir.tools.files import read_program
    from distir.tools.reporting import progress

    with progress(f"reading {arguments.program}"):
        module = read_program(arguments.program)
    if arguments.cluster is not None:
        distributed_as_asked(module, arguments)
    return module


def distributed_as_asked(module: ModuleOp, arguments: Namespace) -> None:
    """
    Distributes a program, in place, over the cluster and with the options that a command
    was given, and prints the remarks of the passes. Raises DistIRError.
    """
    from distir.planning.annotations import read_notes
    from distir.tools.reporting import note

    distribute_as_asked(module, arguments)
    for text in read_notes(module):
        note(text)


def distribute_as_asked(module: ModuleOp, arguments: Namespace) -> None:
    """
    Distributes a program, in place, over the cluster and with the options that a command
    was given. Raises DistIRError.
    """
    from distir.errors import DistIRError
    from distir.hardware import load_cluster
    from distir.interpreters.simulator.profiles.files import ProfileChoice
    from distir.passes.distribute import DistributePass
    from distir.planning.plans.programs import replace_cluster
    from distir.tools.files import apply_passes
    from distir.tools.reporting import progress

    cluster = load_cluster(arguments.cluster, arguments.devices)
    if module.body.block.first_op is None:
        raise DistIRError(f"{arguments.program} holds no program")
    replace_cluster(module, cluster)
    kinds = arguments.overlap
    # Commands without --profile have no times to show.
    named = getattr(arguments, "profile", None)
    profiles = () if named is None else ProfileChoice.of(named, cluster).names
    own = {
        "overlap": bool(kinds),
        "overlapped": () if _ALL in kinds else tuple(kinds),
        "profile": profiles,
    }
    given = {
        field.name: getattr(arguments, field.name)
        for field in fields(DistributePass)
        if field.name not in ("cluster", *own)
    }
    options: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in (given | own).items()
    }
    with progress("distributing"):
        apply_passes(module, DistributePass(cluster=cluster.sym_name.data, **options))
