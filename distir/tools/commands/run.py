"""`distir run`: runs a distributed program on real processes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distir.launch.options import ProcessOptions
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.types import (
    non_negative_integer,
    non_negative_number,
    output_file,
    positive_integer,
)

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from distir.launch.packages import Training
    from distir.tools.files import Arrays


def _resume(text: str) -> str:
    return text if text in ("latest", "if-any") else str(positive_integer(text))


def _data(text: str) -> str:
    """
    Parses the source of data: `FILE.py:FUNCTION` or `NAME=FILE.npy`. Its path becomes
    absolute, because ranks run in another folder.
    """
    file, _, function = text.rpartition(":")
    if file.endswith(".py") and function:
        return f"{Path(file).resolve()}:{function}"
    name, equals, path = text.partition("=")
    if name and equals and path:
        return f"{name}={Path(path).resolve()}"
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither FILE.py:FUNCTION nor NAME=FILE.npy"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="dist.mlir")
    add_options(
        parser,
        ProcessOptions,
        ("backend",),
        default=None,
        required=True,
        help="gloo on CPUs, nccl with one GPU per rank",
    )
    parser.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE.npz",
        help="whole arguments by name; what neither it nor the weights hold is random",
    )
    add_options(parser, ProcessOptions, ("seed",))
    parser.add_argument(
        "--outputs",
        type=output_file,
        metavar="FILE.npz",
        help="where to write the results",
    )
    add_options(parser, ProcessOptions, ("timeout",))
    add_options(parser, ProcessOptions, ("compile",))
    add_options(parser, ProcessOptions, ("kernels",))
    training = parser.add_argument_group("training")
    training.add_argument(
        "--steps",
        type=positive_integer,
        metavar="N",
        help="train up to step N; inputs and labels may have one more dimension in "
        "front, of steps. The outputs are the losses and the final parameters",
    )
    training.add_argument(
        "--weights",
        type=Path,
        action="append",
        metavar="PATH",
        help="start from these instead of the program's own weights: a safetensors file, a "
        "folder of such files, or a checkpoint of PyTorch (DCP), of which each rank reads "
        "its part. May be repeated; what the first lacks is taken from the next",
    )
    training.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="save checkpoints to this folder: the last two, after the last step and "
        "as --save-every says",
    )
    training.add_argument(
        "--save-every",
        type=positive_integer,
        metavar="K",
        help="save a checkpoint after every K steps",
    )
    training.add_argument(
        "--resume",
        nargs="?",
        const="latest",
        type=_resume,
        metavar="STEP",
        help="go on from the latest checkpoint or from that of a step; it may come from "
        "another distribution of the program. `if-any` starts anew where there is none",
    )
    data = parser.add_argument_group("data, in a training")
    data.add_argument(
        "--data",
        action="append",
        type=_data,
        metavar="FILE.py:FUNCTION|NAME=FILE.npy",
        help="inputs and labels: a function that returns a torch Dataset, of which every "
        "epoch has each sample once, or an iterable of batches, tuples in the order of the "
        "program or dictionaries by name; with two arguments, the number of this process's "
        "part and of all parts, an iterable of these parts. Or an array of samples, which "
        "is memory-mapped, for each input and label",
    )
    data.add_argument(
        "--data-workers",
        type=non_negative_integer,
        metavar="N",
        help="processes of each rank that load samples of a torch Dataset (default 0: none but "
        "itself)",
    )
    data.add_argument(
        "--eval-every",
        type=positive_integer,
        metavar="N",
        help="evaluate on --eval-data after every N steps",
    )
    data.add_argument(
        "--eval-data",
        action="append",
        type=_data,
        metavar="FILE.py:FUNCTION|NAME=FILE.npy",
        help="what to evaluate on, once as a whole; as --data",
    )
    data.add_argument(
        "--log-file",
        type=Path,
        metavar="FILE.jsonl",
        help="add a line of JSON for each step and each evaluation to this file",
    )
    data.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write losses and learning rates for TensorBoard",
    )
    rates = parser.add_argument_group("learning rate, in a training")
    rates.add_argument(
        "--warmup",
        type=positive_integer,
        metavar="N",
        help="let it grow in equal parts to the program's own in the first N steps",
    )
    rates.add_argument(
        "--decay",
        choices=("cosine", "linear", "none"),
        help="let it fall from then on (default none)",
    )
    rates.add_argument(
        "--min-lr",
        type=non_negative_number,
        metavar="X",
        help="what it falls to (default 0)",
    )
    rates.add_argument(
        "--decay-until",
        type=positive_integer,
        metavar="STEP",
        help="the step by which it has fallen (default that of --steps)",
    )


def _row(name: str, array: npt.NDArray[Any]) -> list[str]:
    wide = array.astype(np.float64) if array.dtype.kind in "fiuV" else None
    numbers = (
        ["", "", ""]
        if wide is None or not wide.size
        else [f"{x:.4g}" for x in (wide.min(), wide.mean(), wide.max())]
    )
    return [name, f"{array.dtype}{list(array.shape)}", *numbers]


def _training(
    arguments: argparse.Namespace, settings: Mapping[str, Sequence[float]]
) -> Training | None:
    """
    Returns the training run that the arguments describe, or None without `--steps`.
    `settings` has the values of optimizer settings for all steps. Raises DistIRError
    for options that cannot be combined.
    """
    from distir.launch.packages import LearningRate, Training

    check_options(arguments)
    if arguments.steps is None:
        return None
    return Training(
        arguments.steps,
        arguments.seed,
        arguments.checkpoint_dir,
        arguments.save_every or 0,
        arguments.resume or "",
        LearningRate(
            arguments.warmup or 0,
            arguments.decay or "none",
            arguments.min_lr or 0.0,
            arguments.decay_until,
        ),
        settings,
        arguments.data or (),
        arguments.data_workers or 0,
        arguments.eval_every or 0,
        arguments.eval_data or (),
        arguments.log_file,
        arguments.tensorboard,
    )


def check_options(arguments: argparse.Namespace) -> None:
    """Raises DistIRError for options that cannot be combined."""
    from distir.errors import DistIRError

    needs = {
        "weights": "steps",
        "checkpoint_dir": "steps",
        "save_every": "checkpoint_dir",
    }
    needs |= {"resume": "checkpoint_dir", "warmup": "steps", "decay": "steps"}
    needs |= {"data": "steps", "data_workers": "data", "eval_every": "steps"}
    needs |= {"eval_data": "eval_every", "log_file": "steps", "tensorboard": "steps"}
    needs |= {"min_lr": "decay", "decay_until": "decay"}
    for option, needed in needs.items():
        if getattr(arguments, option) and not getattr(arguments, needed):
            option, needed = option.replace("_", "-"), needed.replace("_", "-")
            raise DistIRError(f"--{option} is of use with --{needed} only; add it")
    if arguments.eval_every and not arguments.eval_data:
        raise DistIRError("--eval-every needs --eval-data; say what to evaluate on")


def run(arguments: argparse.Namespace) -> int:
    from distir.program.weights import weights_file
    from distir.tools.files import (
        program_weights,
        read_arrays,
        read_program,
        write_arrays,
    )
    from distir.tools.reports.reporting import progress, table

    def log(line: str) -> None:
        # An error of a rank is reported at the end, once.
        if not line.startswith("error: "):
            print(line, file=sys.stderr)

    check_options(arguments)
    with progress(f"reading {arguments.program}"):
        module = read_program(arguments.program)
        weights = weights_file(module, arguments.program)
        in_weights = program_weights(module, arguments.program)
        given = read_arrays(arguments.inputs)
    results = executed(module, arguments, (weights, in_weights), given, log)
    if arguments.outputs is not None:
        write_arrays(arguments.outputs, results)
    table(
        ["output", "type", "least", "mean", "largest"],
        [_row(name, array) for name, array in results.items()],
    )
    return 0


def executed(
    module: ModuleOp,
    arguments: argparse.Namespace,
    weights: tuple[Path | None, Arrays],
    given: Arrays,
    log: Callable[[str], None],
    settings: Mapping[str, Sequence[float]] = {},
) -> dict[str, npt.NDArray[Any]]:
    """
    Runs a distributed program on processes of this machine and returns its results by
    name.

    `arguments` has the options of `distir run`. `weights` is a pair: the file of the
    weights, or None, and the weights by name. `given` has inputs by name. `log` is
    called with lines of progress. `settings` has the learning rate or weight decay of
    each step of a training run. Raises DistIRError if the program cannot run.
    """
    from tempfile import TemporaryDirectory

    from distir.errors import DistIRError
    from distir.launch.packages import run_package
    from distir.lowering.torch_package import write_package
    from distir.planning.plans.programs import trains
    from distir.tools.arguments.program import (
        check_known,
        training_arguments,
        whole_arguments,
    )
    from distir.tools.reports.reporting import progress

    training = _training(arguments, settings)
    if training is not None and not trains(module):
        raise DistIRError(
            f"{arguments.program} updates no argument (dist.updates), so that it cannot be "
            f"trained; leave out --steps, or build or import a training step with --training"
        )
    path, (file, by_name) = arguments.program, weights
    choose = whole_arguments if training is None else training_arguments
    if training is not None and training.data:
        check_known(module, path, by_name, given)
        values = given
    else:
        values = choose(module, path, by_name, given, arguments.seed)
    inputs = {k: v for k, v in values.items() if k in given or k not in by_name}
    with TemporaryDirectory(prefix="distir-") as folder:
        with progress(f"lowering {path}"):
            evaluates = training is not None and training.eval_every > 0
            package = write_package(
                module,
                folder,
                file,
                evaluation=evaluates,
                compiled=arguments.compile,
                kernels=arguments.kernels,
            )
        with progress("running"):
            return run_package(
                package,
                backend=arguments.backend,
                inputs=inputs,
                weights=[*(arguments.weights or ()), *([] if file is None else [file])],
                timeout_s=arguments.timeout,
                progress=log,
                training=training,
            )
