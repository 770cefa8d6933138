"""`distir export`: writes the weights of a checkpoint for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.tools.arguments import output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="a folder that torch.distributed.checkpoint wrote, or the --checkpoint-dir of "
        "`distir run`, of which the latest is taken",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=output_file,
        required=True,
        metavar="model.safetensors",
        help="the file to write; beside its config.json it is a model that transformers' "
        "from_pretrained loads",
    )


def run(arguments: argparse.Namespace) -> int:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from distir.errors import DistIRError
    from distir.lowering.checkpoint_files import read_model
    from distir.tools.reporting import note, progress

    output: Path = arguments.output
    if output.suffix != ".safetensors":
        raise DistIRError(f"cannot write {output}: its name has to end in .safetensors")
    with progress(f"reading {arguments.checkpoint}"):
        tensors = read_model(arguments.checkpoint)
    try:
        # transformers requires this of a file.
        save_file(tensors, output, metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        raise DistIRError(f"cannot write {output}: {error}") from error
    note(f"{len(tensors)} tensors in {output}")
    return 0
