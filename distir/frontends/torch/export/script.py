"""
Exports modules with PyTorch's older exporter, which runs a module and records its
operations.
"""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import onnx

from distir.errors import DistIRError, listed
from distir.frontends.torch.export.exported_module import ExportedModule
from distir.frontends.torch.modules.inputs import leaf_names

if TYPE_CHECKING:
    import torch


def export_torchscript(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ExportedModule, set[str], list[str]]:
    """
    Exports a module with the older exporter. Returns the program, and two facts that
    the program lacks: the names of functions that stop gradients in the module, and the
    lines in which Python reads values of tensors. Raises any error that the exporter or
    the module raises.

    The older exporter treats every argument as given and every tensor as positional.
    Therefore it traces a forward method whose only arguments are the given tensors.
    """
    import torch
    from torch.utils import _pytree

    from distir.frontends.torch.export.gradients import LostStops
    from distir.frontends.torch.modules.python import ValueReads

    leaves, spec = _pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    names = leaf_names(dict(bound.arguments), "input")
    forward, patched = module.forward, module.__dict__.get("forward")
    output_names: list[str] = []
    reads: dict[str, None] = {}

    def traced_forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        inner_args, inner_kwargs = _pytree.tree_unflatten(values, spec)
        # Modules may take other ways while they are traced.
        watch = ValueReads([*tensors, *module.parameters()], reads)
        is_traced = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        with watch if is_traced else contextlib.nullcontext():
            output = forward(*inner_args, **inner_kwargs)
        output_names[:] = leaf_names(output, "output")
        return tuple(_pytree.tree_leaves(output))

    module.forward = traced_forward
    try:
        with torch.enable_grad(), LostStops() as stops:
            traced_forward(*(leaves[i] for i in places))
        with (
            tempfile.TemporaryDirectory() as folder,
            _without_log(),
        ):
            path = Path(folder, "model.onnx")
            torch.onnx.export(
                module,
                tuple(leaves[i] for i in places),
                str(path),
                dynamo=False,
                input_names=[names[i] for i in places],
                output_names=output_names,
                # Folding would transpose and rename the parameters.
                do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE,
            )
            model = onnx.load(path)
    finally:
        if patched is None:
            del module.forward
        else:
            module.forward = patched
    return ExportedModule(model, is_traced=True), stops.found, list(reads)


@contextlib.contextmanager
def _without_log() -> Generator[None]:
    """
    A context manager inside which the exporter does not print the graphs that it fails
    to export. The exporter itself switches this log on and leaves it on.
    """
    import torch

    log: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    was_enabled = log._jit_is_onnx_log_enabled()
    log._jit_set_onnx_log_enabled(False)
    try:
        with patch("torch._C._jit_set_onnx_log_enabled"):
            yield
    finally:
        log._jit_set_onnx_log_enabled(was_enabled)


def tell_of_stops(
    module: torch.nn.Module,
    stops: set[str],
    training: bool,
    why_not_newer: str | None = None,
) -> None:
    """
    Raises DistIRError if the older exporter lost stops of gradients and the program is
    for `training`; only warns if it is not. `stops` are the names of the functions that
    stop gradients. `why_not_newer` is the reason why the newer exporter cannot write
    the module, or None.
    """
    if not stops:
        return
    advice = 'import it with exporter="dynamo"'
    if why_not_newer is not None:
        advice = f"the newer one, which writes it, cannot: {why_not_newer}"
    message = (
        f"{type(module).__name__} stops gradients ({listed(sorted(stops))}), which "
        f"PyTorch's torchscript exporter does not write: the program computes the same, "
        f"but has other gradients; {advice}"
    )
    if training:
        raise DistIRError(message)
    warnings.warn(message, stacklevel=5)
