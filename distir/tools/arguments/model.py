"""
The arguments of `distir import` that name its model. A model is an ONNX file, a Python
function or a configuration of transformers.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distir.frontends.options import PAGING, ServingOptions
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.types import positive_integer

if TYPE_CHECKING:
    import torch

    from distir.frontends.imported_model import ImportedModel
    from distir.frontends.serving import ServingSizes

_SERVED = ("causal-lm", "seq2seq-lm")
"""The tasks whose models generate tokens; the prompts of the second go to an encoder."""


def add_transformers_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--transformers` and the options that belong to it to `parser`."""
    from distir.frontends.torch.sources import TASKS

    group = parser.add_argument_group("models of Hugging Face, without a download")
    group.add_argument(
        "--transformers",
        type=Path,
        metavar="CONFIG.json",
        help="the model that this configuration describes, with initial values",
    )
    group.add_argument(
        "--task",
        choices=TASKS,
        metavar="TASK",
        help=f"what the model is for: {', '.join(TASKS)}",
    )
    group.add_argument(
        "--batch",
        type=positive_integer,
        metavar="N",
        help="sequences or images in a batch",
    )
    group.add_argument(
        "--seq", type=positive_integer, metavar="N", help="words in a sequence"
    )
    group.add_argument(
        "--target-seq",
        type=positive_integer,
        metavar="N",
        help="words that the decoder gets, for seq2seq-lm (default: as --seq)",
    )
    add_options(group, ServingOptions)
    group.add_argument(
        "--meta",
        action="store_true",
        help="without values of parameters, for models of any size",
    )


def add_trust_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Adds the options that control the comparison of a module with its imported program.
    """
    from distir.frontends.torch.trust import ACCEPTED

    parser.add_argument(
        "--no-check",
        action="store_true",
        help="do not run the program of a PyTorch module beside the module, on the example "
        "inputs and on others",
    )
    parser.add_argument(
        "--allow",
        choices=ACCEPTED,
        action="append",
        default=[],
        help="accept that a module's program differs from it in this way: it does what Python "
        "did for the example inputs, has the random numbers that Python drew once, or the "
        "derivative of a forward instead of its own backward, or computes something else; may "
        "be repeated",
    )


def source_of(arguments: argparse.Namespace) -> Path:
    """
    Returns the path of the file that contains the model: an ONNX file, a Python file
    with a function, or a configuration.
    """
    return arguments.model or arguments.transformers


def imported_model(arguments: argparse.Namespace) -> ImportedModel:
    """
    Imports the model that the arguments name. Raises DistIRError if the model cannot be
    imported.
    """
    from distir.tools.reports.reporting import progress

    function = _function(arguments)
    _check(arguments, is_module=function is not None or arguments.model is None)
    with progress(f"importing {source_of(arguments)}"):
        if arguments.model is not None and arguments.model.suffix == ".mlir":
            from distir.frontends.stablehlo.file import import_stablehlo_file

            return import_stablehlo_file(
                arguments.model, ignore_shardings=arguments.ignore_shardings
            )
        if arguments.model is not None and function is None:
            from distir.frontends.onnx.importer import import_onnx

            return import_onnx(
                arguments.model,
                dict(arguments.dim),
                numbers=dict(arguments.value),
                trainable=arguments.trainable,
                frozen=arguments.frozen,
            )
        _check_torch()
        from distir.frontends.torch.importer import import_torch
        from distir.frontends.torch.sources import from_config, from_function

        if function is not None:
            source = from_function(*function)
        else:
            source = from_config(
                arguments.transformers,
                arguments.task,
                arguments.batch,
                arguments.seq,
                target_seq=arguments.target_seq,
                meta=arguments.meta,
            )
        if not arguments.training and not arguments.training_mode:
            _tell_of_training_mode(source.module, source_of(arguments))
        return import_torch(
            source.module,
            source.args,
            source.kwargs,
            training=arguments.training or arguments.training_mode,
            trainable=arguments.trainable,
            frozen=arguments.frozen,
            capacity_factor=arguments.capacity_factor,
            equal_features=arguments.equal_features,
            copy=False,
            check=not arguments.no_check,
            allow=arguments.allow,
        )


def _tell_of_training_mode(module: torch.nn.Module, source: Path) -> None:
    """
    Prints a note about the parts of `module` that would compute something else in
    training mode, if there are any. `source` names the module in the note.
    """
    from distir.frontends.torch.modules.state import parts_that_change
    from distir.tools.reports.reporting import note

    parts = parts_that_change(module)
    if parts:
        more = f" and {len(parts) - 1} other parts" if len(parts) > 1 else ""
        note(
            f"{source} is imported in evaluation mode: {parts[0]}{more} in train() would drop "
            f"elements or use the statistics of the batch; --training makes a training step "
            f"that does, --training-mode a program to schedule first"
        )


def _function(arguments: argparse.Namespace) -> tuple[Path, str] | None:
    """
    Returns the file and the function of a model that is given as `FILE.py:FUNCTION`.
    Returns None if the model is given in another way.
    """
    file, colon, name = str(arguments.model or "").rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") else None


def _check(arguments: argparse.Namespace, *, is_module: bool) -> None:
    """
    Raises DistIRError for arguments that cannot be combined. `is_module` tells whether
    the model is a PyTorch module.
    """
    from distir.errors import DistIRError

    if (arguments.model is None) == (arguments.transformers is None):
        raise DistIRError(
            "give one model: an ONNX file, FILE.py:FUNCTION, or --transformers CONFIG.json"
        )
    if arguments.model is not None and arguments.model.suffix == ".py":
        raise DistIRError(
            f"{arguments.model} is code; say which function makes the model: "
            f"{arguments.model}:FUNCTION"
        )
    is_stablehlo = arguments.model is not None and arguments.model.suffix == ".mlir"
    if arguments.ignore_shardings and not is_stablehlo:
        raise DistIRError(
            "--ignore-shardings is for files of StableHLO; other models have no shardings"
        )
    if arguments.capacity_factor is not None and not is_module:
        raise DistIRError(
            "--capacity-factor is for modules; the experts of an ONNX file are what they were "
            "when it was written"
        )
    if arguments.training_mode and not is_module:
        raise DistIRError(
            "--training-mode is for modules; an ONNX file is in the mode in which it was written"
        )
    if arguments.equal_features and not is_module:
        raise DistIRError(
            "--equal-features is for modules; where features of an ONNX file go is in the file"
        )
    if (arguments.no_check or arguments.allow) and not is_module:
        raise DistIRError(
            "--no-check and --allow are for modules; an ONNX file has no module to be "
            "compared with"
        )
    if is_module and arguments.dim:
        raise DistIRError(
            "--dim is for ONNX files; modules have the sizes of their example inputs"
        )
    if is_module and arguments.value:
        raise DistIRError(
            "--value is for ONNX files; modules have numbers among their example inputs"
        )
    if arguments.transformers is None:
        for option in (
            *("task", "batch", "seq", "target_seq", "serve", "cache", "prompt", "meta"),
            *PAGING,
        ):
            if getattr(arguments, option):
                raise DistIRError(
                    f"--{option.replace('_', '-')} is of use with --transformers only; "
                    f"add it"
                )
        return
    missing = [
        f"--{name}" for name in ("task", "batch") if not getattr(arguments, name)
    ]
    if missing:
        advice = "add it" if len(missing) == 1 else "add them"
        raise DistIRError(f"--transformers needs {' and '.join(missing)}; {advice}")
    _check_serving(arguments)


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--config`, a configuration of Hugging Face, to `parser`."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="config.json",
        help="the model's configuration of Hugging Face, where the file or the plan has none",
    )


def _check_serving(arguments: argparse.Namespace) -> None:
    """
    Raises DistIRError for options that cannot be combined with `--serve`, or need it.
    """
    from distir.errors import DistIRError

    if not arguments.serve:
        for option in ("cache", "prompt", *PAGING, "weights_dtype", "cache_dtype"):
            if getattr(arguments, option):
                raise DistIRError(
                    f"--{option.replace('_', '-')} is of use with --serve only; add it"
                )
        return
    if arguments.task not in _SERVED:
        raise DistIRError(
            f"--serve is for models that generate tokens, --task {' and '.join(_SERVED)}; "
            f"there are no steps of generation for {arguments.task}"
        )
    _sizes(arguments)
    others = ("seq", "target_seq", "training", "training_mode", "capacity_factor")
    for option in others:
        if getattr(arguments, option):
            raise DistIRError(
                f"--{option.replace('_', '-')} does not go with --serve; leave it out"
            )


def imported_entries(arguments: argparse.Namespace) -> dict[str, ImportedModel]:
    """
    Imports the steps of generation (prefill and decode) of the model that the arguments
    name, by the name of the entry. Raises DistIRError if the model cannot be imported.
    """
    from distir.tools.reports.reporting import progress

    _check(arguments, is_module=True)
    _check_torch()
    from distir.frontends.torch.serving.importer import import_serving
    from distir.frontends.torch.sources import from_config

    with progress(f"importing {source_of(arguments)}"):
        source = from_config(
            arguments.transformers,
            arguments.task,
            arguments.batch,
            arguments.cache,
            meta=arguments.meta,
            length_option="--cache",
        )
        return import_serving(
            source.module,
            _sizes(arguments),
            check=not arguments.no_check,
            allow=arguments.allow,
        )


def _sizes(arguments: argparse.Namespace) -> ServingSizes:
    """
    Returns the sizes of the steps of generation. Raises DistIRError if a size is
    missing or wrong.
    """
    from distir.frontends.serving import serving_sizes

    has_encoder = arguments.task == _SERVED[1]
    return serving_sizes(
        *(arguments.batch, arguments.cache, arguments.prompt),
        has_encoder=has_encoder,
        **paging_of(arguments),
    )


def paging_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options for a cache in pages, as keyword arguments by name."""
    return {name: getattr(arguments, name) for name in PAGING}


def _check_torch() -> None:
    """Raises DistIRError if PyTorch is not installed."""
    from distir.errors import DistIRError

    try:
        import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise DistIRError(
            "modules are imported with PyTorch; pip install torch"
        ) from None
