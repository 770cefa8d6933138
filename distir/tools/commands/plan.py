"""
`distir plan`: reads the settings of a training run from the files of a training system,
and predicts its time and memory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distir.exports.systems.registry import READABLE
from distir.tools.arguments.cluster import add_cluster_arguments, add_profile_argument
from distir.tools.arguments.model import add_config_argument
from distir.tools.arguments.types import (
    output_file_of,
    positive_integer,
    positive_number,
)

if TYPE_CHECKING:
    from distir.exports.runs.prediction import Prediction, Predictor
    from distir.exports.systems.settings import RunSettings
    from distir.exports.systems.system import Read, System

_LONGEST = 60.0
"""The most seconds that `--improve` takes."""

_GIVEN = ("seq", "vocab", "batch", "micro_batch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        type=Path,
        metavar="FILE",
        help="a script that starts a run of Megatron-LM, or its arguments; a configuration "
        "of another system",
    )
    parser.add_argument(
        "--from",
        dest="system",
        required=True,
        choices=READABLE,
        help="whose file it is",
    )
    add_cluster_arguments(parser)
    add_profile_argument(parser)
    add_config_argument(parser)
    for name, text in (
        ("seq", "tokens of a sequence"),
        ("vocab", "words of the vocabulary"),
        ("batch", "sequences of the global batch"),
        ("micro-batch", "sequences of a device at a time"),
    ):
        parser.add_argument(
            f"--{name}",
            type=positive_integer,
            metavar="N",
            help=f"{text}, where the file does not say it or says otherwise",
        )
    parser.add_argument(
        "--set",
        dest="given",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of a variable of the script, or of an option of the file; may be "
        "repeated",
    )
    parser.add_argument(
        "--improve",
        type=positive_number,
        nargs="?",
        const=_LONGEST,
        metavar="SECONDS",
        help="search around the plan for a faster one with the same global batch "
        "(at most 60 s, the default)",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=output_file_of(".json"),
        metavar="plan.json",
        help="write the plan, for `distir export` and `distir distribute --plan`; with "
        "--improve the better one",
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.exports.runs.model import approximations
    from distir.exports.runs.prediction import Predictor
    from distir.exports.systems.huggingface import read_model
    from distir.exports.systems.registry import SYSTEMS
    from distir.hardware import load_cluster
    from distir.tools.arguments.cluster import chosen_profiles
    from distir.tools.reports.reporting import note, progress

    system = SYSTEMS[arguments.system]
    document = system.parse(
        _text(arguments.source), str(arguments.source), _given(arguments.given)
    )
    more: dict[str, Any] = {name: getattr(arguments, name) or 0 for name in _GIVEN}
    if arguments.devices:
        more["devices"] = arguments.devices
    if arguments.config is not None:
        own = read_model(arguments.config)
        more = {**own, **{n: v for n, v in more.items() if v}}
    if not more.get("seq") and more.get("positions"):
        more["seq"] = more["positions"]
        note(
            f"sequences of {more['seq']} tokens, the longest of the model; --seq says otherwise"
        )
    read = system.read(document, more)
    settings = read.settings
    cluster = load_cluster(
        arguments.cluster, _grown(arguments.cluster, settings.devices)
    )
    profiles = chosen_profiles(arguments.profile, cluster)
    predictor = Predictor(cluster, profiles, arguments.expert_imbalance)
    _say_read(read, system, approximations(settings))
    with progress("simulating"):
        prediction = predictor.predict(settings, system.vocabulary(settings))
    _say(prediction, settings)
    if arguments.improve is not None:
        seconds = min(arguments.improve, _LONGEST)
        settings, prediction = _improve(read, prediction, system, predictor, seconds)
    if arguments.output is not None:
        _save(arguments.output, read, settings, prediction, system, predictor)
    return 0


def _text(path: Path) -> str:
    from distir.errors import DistIRError

    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise DistIRError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DistIRError(f"{path} is not text in UTF-8") from error


def _given(texts: list[str]) -> dict[str, str]:
    from distir.errors import DistIRError

    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise DistIRError(f"--set {text}: write NAME=VALUE")
        found[name] = value
    return found


def _grown(cluster: str, devices: int) -> int | None:
    """
    Returns the number of devices to which a cluster must grow to have at least
    `devices` devices. Returns None if the cluster is large enough.
    """
    from distir.hardware import load_cluster

    size = load_cluster(cluster, None).size
    return None if devices <= size else -(-devices // size) * size


def _say_read(read: Read, system: System, approximations: list[str]) -> None:
    """
    Prints the settings that were read from the files, and the options that were
    ignored.
    """
    from distir.tools.reports.reporting import note

    s = read.settings
    experts = (
        f", {s.experts} experts of which {s.top_k} take a token" if s.experts else ""
    )
    print(
        f"{s.layers} layers of width {s.d_model}, {s.heads} heads{experts}, "
        f"{system.vocabulary(s)} words; {s.batch} sequences of {s.seq} tokens, {s.dtype}"
        f"{' with products in float8' if s.float8 else ''}"
    )
    print(f"{s.devices} devices: {plan_text(s)}")
    for text in read.notes:
        note(text)
    for text in approximations:
        note(f"not as in the model: {text}")
    if read.unknown:
        names = ", ".join(map(system.option, read.unknown))
        note(f"unknown to DistIR, and taken to change nothing: {names}")
    if read.ignored:
        names = ", ".join(map(system.option, read.ignored))
        note(f"ignored, as neither time nor memory depends on them: {names}")


def plan_text(s: RunSettings) -> str:
    """Returns the plan of a run as one line of text."""
    parts = [f"d={s.d} t={s.t} p={s.p}"]
    parts += [f"{name}={getattr(s, name)}" for name in "cer" if getattr(s, name) > 1]
    parts.append(f"{s.k} micro-batches of {s.micro_batch}")
    if s.zero:
        parts.append(f"ZeRO {s.zero}")
    if s.sequence_parallel and s.t > 1:
        parts.append("sequence parallelism")
    if s.p > 1:
        parts.append(s.schedule or "1f1b")
    if s.chunks:
        parts.append(f"{s.chunks} stages a rank")
    if s.checkpoint != "none":
        parts.append(f"recomputes {s.checkpoint}")
    if s.overlap:
        parts.append(f"overlap of {s.overlap}")
    return ", ".join(parts)


def _say(prediction: Prediction, settings: RunSettings) -> None:
    from distir.tools.reports.reporting import bytes_text, note, seconds_text

    rate = settings.batch / prediction.seconds
    print(
        f"step time {seconds_text(prediction.seconds)}, {rate:.4g} samples/s, "
        f"{rate * settings.seq:.4g} tokens/s, MFU {100 * prediction.mfu:.3g} %"
    )
    print(
        f"memory {bytes_text(prediction.peak)} of {bytes_text(prediction.memory)} on the "
        f"fullest device"
    )
    print(f"limited by {prediction.limit}")
    if not prediction.fits:
        note("the run does not fit into the memory of its devices")


def _improve(
    read: Read,
    prediction: Prediction,
    system: System,
    predictor: Predictor,
    seconds: float,
) -> tuple[RunSettings, Prediction]:
    """
    Searches for a faster run, prints the options that change, and returns the best run
    with its prediction.
    """
    from distir.exports.runs.improvement import improved
    from distir.solver.clock import Clock
    from distir.tools.reports.reporting import note, progress, seconds_text

    with progress("searching around the plan"):
        found = improved(read.settings, prediction, system, predictor, Clock(seconds))
    if found.settings == read.settings:
        note(f"none of {found.judged} plans around this one is faster")
        return found.settings, found.prediction
    before, _ = system.write(read.settings, read.kept, read.said)
    after, remarks = system.write(found.settings, read.kept, read.said)
    changed = [
        _option(system, name, after.get(name))
        for name in dict.fromkeys([*after, *before])
        if before.get(name) != after.get(name)
    ]
    if prediction.fits:
        faster = 100 * (prediction.seconds / found.prediction.seconds - 1)
        gain = f"{faster:.3g} % faster ({seconds_text(found.prediction.seconds)})"
    else:
        gain = f"fits, in {seconds_text(found.prediction.seconds)}"
    print(f"\nGBS unchanged, {gain}: {' '.join(changed)}")
    print(f"{found.judged} plans judged; this one: {plan_text(found.settings)}")
    _say(found.prediction, found.settings)
    for remark in remarks:
        note(remark)
    return found.settings, found.prediction


def _option(system: System, name: str, value: Any) -> str:
    written = system.option(name)
    if value is None or value is False:
        return (
            f"without {written}" if written.startswith("--") else f"{written} = false"
        )
    if not written.startswith("--"):
        return f"{written} = {value}"
    return written if value is True else f"{written} {value}"


def _save(
    path: Path,
    read: Read,
    settings: RunSettings,
    prediction: Prediction,
    system: System,
    predictor: Predictor,
) -> None:
    from dataclasses import replace

    from distir.exports.systems.plan_file import grid_plan, run_data
    from distir.planning.plans.result import Simulated
    from distir.planning.plans.saved_plan import SavedPlan

    result = Simulated(
        grid_plan(settings),
        step_time_s=prediction.seconds,
        throughput_samples_per_s=settings.batch / prediction.seconds,
        peak_memory_bytes=prediction.peak,
        memory_bytes=prediction.memory,
    )
    module = predictor.program(settings, system.vocabulary(settings), settings.batch)
    plan = SavedPlan.for_program(
        module, result, predictor.cluster, predictor.profiles, prediction.limit
    )
    own = replace(read, settings=settings)
    replace(plan, run=run_data(own, system.name)).save(path)
