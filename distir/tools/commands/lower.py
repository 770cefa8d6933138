"""`distir lower`: turns a distributed program into a PyTorch package."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

from distir.launch.options import ProcessOptions
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.types import output_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="dist.mlir")
    parser.add_argument(
        "-o",
        dest="output",
        type=output_folder,
        required=True,
        metavar="DIR",
        help="the folder of the package; made if needed",
    )
    parser.add_argument(
        "--evaluation",
        action="store_true",
        help="let the package of a training step evaluate too (main.py --eval-every)",
    )
    add_options(
        parser,
        ProcessOptions,
        ("compile",),
        help="let PyTorch's compiler (torch.compile) make kernels of the layers when the package runs",
    )
    parser.add_argument(
        "--check-memory",
        action="store_true",
        help="count the memory that the package's processes hold at most, without needing "
        "it, beside what `distir simulate` says",
    )
    add_options(parser, ProcessOptions, ("kernels",))


@dataclass(frozen=True)
class PeakMemory:
    """
    The peak memory of the processes `ranks` of a package, in bytes. `simulated` is the
    simulator's prediction. `counted` is counted from the tensors of the package.
    """

    ranks: tuple[int, ...]
    simulated: int
    counted: int


def run(arguments: argparse.Namespace) -> int:
    from distir.program.weights import weights_file
    from distir.tools.files import program_weights, read_program
    from distir.tools.reports.reporting import bytes_text, note, progress, table

    with progress(f"lowering {arguments.program}"):
        module = read_program(arguments.program)
        weights = weights_file(module, arguments.program)
        if weights is not None and weights.exists():
            program_weights(module, arguments.program)  # refuses other weights
        package = lowered(module, arguments, weights)
    manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    note(
        f"start it with torchrun --nproc-per-node {manifest['processes']} "
        f"{package / 'main.py'} (--help says how to give it inputs)"
    )
    for name, reason in manifest["graphs"].items():
        if reason:
            note(f"{name} is no CUDA graph: {reason}")
    if arguments.check_memory:
        with progress("counting memory"):
            found = peak_memory(module, package)
        rows = [
            [
                ", ".join(map(str, each.ranks[:4]))
                + (", ..." if len(each.ranks) > 4 else ""),
                bytes_text(each.simulated),
                bytes_text(each.counted),
                f"{each.counted / each.simulated:.3f}",
            ]
            for each in found
        ]
        table(["ranks", "simulated", "counted", "counted / simulated"], rows)
    return 0


def lowered(
    module: ModuleOp, arguments: argparse.Namespace, weights: Path | None
) -> Path:
    """
    Writes the PyTorch package of a distributed program and returns its folder.
    `arguments` has the options of `distir lower`. `weights` is the file of the weights,
    or None. Raises DistIRError if the program cannot be lowered.
    """
    from distir.lowering.torch_package import write_package

    return write_package(
        module,
        arguments.output,
        weights,
        evaluation=arguments.evaluation,
        compiled=arguments.compile,
        kernels=arguments.kernels,
    )


def peak_memory(module: ModuleOp, package: Path) -> list[PeakMemory]:
    """
    Returns the simulated and the counted peak memory of each group of a package's
    processes that run the same code. `module` is the program of the package. Both
    numbers include the rows of experts for the worst case, because packages allocate
    these. Raises DistIRError if the program cannot be simulated.
    """
    from math import inf

    from distir.interpreters.simulator import simulate
    from distir.launch.memory import count_memory
    from distir.transforms.expert_shards import assume_imbalance
    from distir.transforms.projection import devices_of

    worst = module.clone()
    assume_imbalance(worst, inf)
    simulation = simulate(worst)
    peaks = dict(zip(simulation.devices, simulation.peak_memory_bytes, strict=True))
    devices = devices_of(module)
    return [
        PeakMemory(counted.ranks, peaks[devices[counted.ranks[0]]], counted.peak)
        for counted in count_memory(package)
    ]
