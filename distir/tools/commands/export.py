"""
`distir export`: writes the weights of a checkpoint, or a plan, for use without DistIR.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

from distir.exports.engines import ENGINES
from distir.exports.systems.registry import SYSTEMS
from distir.system.output_files import replaced, write_text
from distir.tools.arguments.model import add_config_argument
from distir.tools.arguments.types import output_file
from distir.tools.engine_export import write_engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        type=Path,
        metavar="CHECKPOINT|PLAN",
        help="a folder that torch.distributed.checkpoint wrote, or the --checkpoint-dir of "
        "`distir run`, of which the latest is taken; with --to dtensor or sdy a distributed "
        "program; with --to dtensor also a plan that `distir search --save-plan` or distir.search wrote",
    )
    parser.add_argument(
        "--to",
        choices=("safetensors", "dtensor", "sdy", *SYSTEMS, *ENGINES),
        default="safetensors",
        metavar="FORMAT",
        help="safetensors (default): the weights of a checkpoint; dtensor: a plan as calls "
        "of PyTorch's parallelize_module, fully_shard, checkpoint_wrapper and pipelining; "
        "sdy: the layouts of a distributed program as shardings of Shardy, over the "
        "StableHLO that it was imported from; "
        f"a training system ({', '.join(SYSTEMS)}): a plan as its arguments or its file; an "
        f"engine for inference ({', '.join(ENGINES)}): a plan of `distir serve-plan "
        "--json` as its flags (.sh)",
    )
    add_config_argument(parser)
    parser.add_argument(
        "--program",
        type=Path,
        metavar="model.mlir",
        help="the program that a saved plan was searched for; with --to sdy the file of "
        "StableHLO that the distributed program was imported from",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=output_file,
        required=True,
        metavar="model.safetensors|plan.py|step.mlir|FILE",
        help="the file to write: weights, beside their config.json a model that "
        "transformers' from_pretrained loads; or Python, to be imported by a training "
        "script; or StableHLO; or the file of a training system (torchtitan: .toml, or .py)",
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError

    output: Path = arguments.output
    if arguments.to in SYSTEMS:
        _write_system(arguments)
        return 0
    if arguments.to in ENGINES:
        if arguments.config is not None:
            raise DistIRError(
                f"--config is for training systems; leave it out for --to {arguments.to}"
            )
        write_engine(arguments)
        return 0
    if arguments.config is not None:
        raise DistIRError(
            f"--config is for training systems; leave it out, or choose --to from "
            f"{', '.join(SYSTEMS)}"
        )
    suffixes = {"dtensor": ".py", "sdy": ".mlir", "safetensors": ".safetensors"}
    suffix = suffixes[arguments.to]
    if output.suffix != suffix:
        raise DistIRError(f"cannot write {output}: its name has to end in {suffix}")
    if arguments.to == "dtensor":
        _write_plan(arguments.source, arguments.program, output)
    elif arguments.to == "sdy":
        _write_shardings(arguments.source, arguments.program, output)
    elif arguments.program is not None:
        raise DistIRError(
            "--program is for a plan; add --to dtensor or --to sdy, or leave it out to "
            "export weights"
        )
    else:
        _write_weights(arguments.source, output)
    return 0


def _write_system(arguments: argparse.Namespace) -> None:
    """
    Writes a plan as the file of a training system, and prints the parts of the plan
    that this system cannot express.
    """
    from distir.errors import DistIRError
    from distir.exports.systems.huggingface import read_model
    from distir.exports.systems.plan_file import settings_of
    from distir.planning.plans.saved_plan import SavedPlan
    from distir.tools.reports.reporting import note

    system, source, output = SYSTEMS[arguments.to], arguments.source, arguments.output
    if system.suffixes and output.suffix not in system.suffixes:
        raise DistIRError(
            f"cannot write {output}: a file of {system.name} has to end in "
            f"{' or '.join(system.suffixes)}"
        )
    if source.suffix != ".json":
        raise DistIRError(
            f"{source} is not a saved plan (.json), as `distir plan -o` and `distir search "
            f"--save-plan` write; --to {system.name} needs one"
        )
    if arguments.program is not None:
        raise DistIRError(f"--to {system.name} needs no --program; leave it out")
    plan = SavedPlan.load(source)
    model = {} if arguments.config is None else read_model(arguments.config)
    settings = settings_of(plan, str(source), model)
    run = plan.run or {}
    is_own = run.get("system") == system.name
    kept, said = (run.get(name, {}) if is_own else {} for name in ("kept", "said"))
    launch = dict(run.get("launch", {}) if is_own else {})
    launch["python"] = output.suffix == ".py"
    values, remarks = system.write(settings, kept, said)
    text = system.render(values, settings, launch)
    try:
        write_text(output, text)
    except OSError as error:
        raise DistIRError(f"cannot write {output}: {error.strerror}") from error
    for remark in remarks:
        note(remark)


def _write_weights(checkpoint: Path, output: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from distir.errors import DistIRError
    from distir.exports.checkpoint_files import read_model
    from distir.tools.reports.reporting import note, progress

    with progress(f"reading {checkpoint}"):
        tensors = read_model(checkpoint)
    try:
        # transformers requires this of a file.
        with replaced(output) as partial:
            save_file(tensors, partial, metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        raise DistIRError(f"cannot write {output}: {error}") from error
    note(f"{len(tensors)} tensors in {output}")


def _write_plan(source: Path, program: Path | None, output: Path) -> None:
    from distir.errors import DistIRError
    from distir.exports.plan import eager_plan
    from distir.exports.source import eager_source
    from distir.tools.reports.reporting import note

    if not output.stem.isidentifier():
        raise DistIRError(
            f"cannot write {output}: a training script is to import it, so that its name "
            f"has to be one that Python can import, such as plan.py"
        )
    plan = eager_plan(_distributed(source, program), str(source))
    text = eager_source(plan, source.name, output.stem)
    try:
        write_text(output, text)
    except OSError as error:
        raise DistIRError(f"cannot write {output}: {error.strerror}") from error
    for remark in plan.remarks:
        note(remark)


def _write_shardings(source: Path, stablehlo: Path | None, output: Path) -> None:
    """
    Writes the layouts of the distributed program `source` into the StableHLO file from
    which the program was imported.
    """
    from importlib.util import find_spec

    from distir.errors import DistIRError
    from distir.tools.files import read_program
    from distir.tools.reports.reporting import note, progress

    if stablehlo is None:
        raise DistIRError(
            "--to sdy writes shardings over StableHLO; add --program with the file that "
            "the program was imported from"
        )
    if find_spec("jaxlib") is None:
        raise DistIRError("--to sdy needs JAX; run `pip install distir[jax]`")
    from distir.exports.sdy import write_shardings

    try:
        text = stablehlo.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DistIRError(
            f"cannot read {stablehlo}: {getattr(error, 'strerror', None) or 'it is no text'}"
        ) from error
    with progress(f"reading {source}"):
        program = read_program(source)
    found = write_shardings(program, text, str(stablehlo))
    try:
        write_text(output, found.text)
    except OSError as error:
        raise DistIRError(f"cannot write {output}: {error.strerror}") from error
    for remark in found.notes:
        note(remark)


def _distributed(source: Path, program: Path | None) -> ModuleOp:
    """
    Returns the distributed program in the file `source`. If `source` is a saved plan,
    applies the plan to the program in the file `program`. Raises DistIRError if the
    files do not fit each other.
    """
    from distir.errors import DistIRError
    from distir.planning.plans.saved_plan import SavedPlan
    from distir.tools.files import read_program
    from distir.tools.reports.reporting import progress

    if source.suffix != ".json":
        if program is not None:
            raise DistIRError(
                f"{source} is a program itself; leave out --program, which is for a saved "
                f"plan (.json)"
            )
        with progress(f"reading {source}"):
            return read_program(source)
    plan = SavedPlan.load(source)
    if program is None:
        raise DistIRError(
            f"{source} says how to distribute a program, and the modules are in that; add "
            f"--program with the program that the plan was searched for"
        )
    with progress(f"following {source}"):
        module = read_program(program)
        plan.distribute(module, str(program))
    return module
