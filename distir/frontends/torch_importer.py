"""PyTorch modules as sequential programs, through PyTorch's two ONNX exporters."""

from __future__ import annotations

import contextlib
import inspect
import io
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from xdsl.dialects.builtin import StringAttr

from distir.dialects.dist import NAME, ROLE
from distir.errors import DistIRError
from distir.frontends.torch_modes import as_it_is, training_norms, write_training_mode
from distir.program import (
    argument_attributes,
    entry_function,
    set_argument_attributes,
    text_attribute,
)

if TYPE_CHECKING:
    import torch

    from distir.frontends.imported_model import ImportedModel

Exporter = Literal["dynamo", "torchscript"]
EXPORTERS: tuple[Exporter, ...] = ("dynamo", "torchscript")


def import_torch(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    exporter: Exporter = "dynamo",
    training: bool = False,
) -> ImportedModel:
    """
    The inference program of a module for inputs of the shapes of `args` and `kwargs`.
    With `training` what `differentiate` makes a training step of: each part of the module
    is in its own mode, so that those in `train()` have dropout and use the statistics of
    the batch, and those in `eval()` do not. Parameters have the names of the module's
    state dict. Raises DistIRError.
    """
    from distir.frontends.onnx_importer import import_onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_onnx(module, args, path, kwargs, exporter=exporter, training=training)
        imported = import_onnx(path)
        # The file goes away; what is mapped from it has to be read.
        imported.weights = {n: a.copy() for n, a in imported.weights.items()}
    _mark_buffers(module, imported)
    return imported


def _mark_buffers(module: torch.nn.Module, imported: ImportedModel) -> None:
    """What the module does not call a parameter is a constant."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    function = entry_function(imported.module)
    attributes = argument_attributes(function)
    for each in attributes:
        if text_attribute(each, ROLE) == "parameter" and (
            text_attribute(each, NAME) not in parameters
        ):
            each[ROLE] = StringAttr("constant")
    set_argument_attributes(function, attributes)


def export_onnx(
    module: torch.nn.Module,
    args: Sequence[Any],
    path: str | Path,
    kwargs: Mapping[str, Any] | None = None,
    *,
    exporter: Exporter = "dynamo",
    training: bool = False,
) -> None:
    """
    Writes the program of a module (see `import_torch`) to an ONNX file as `import_onnx`
    reads it best: static shapes, and the names of modules, parameters, inputs and
    outputs. Large weights may go to files beside it. The module is left as it was.
    Raises DistIRError.
    """
    if exporter not in EXPORTERS:
        raise DistIRError(
            f"unknown exporter {exporter!r}; choose one of {', '.join(EXPORTERS)}"
        )
    modes = {m: m.training for m in module.modules()}
    if not training:
        module.eval()
    norms = training_norms(module)
    try:
        export = _export_dynamo if exporter == "dynamo" else _export_torchscript
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with as_it_is(module):
                export(module, tuple(args), dict(kwargs or {}), str(path))
        if any(part.training for part in module.modules()):
            write_training_mode(path, norms)
    except Exception as error:
        # The exporters raise errors of every kind, of their own and of the model's; the
        # first of a chain says what is wrong.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        message = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        raise DistIRError(
            f"PyTorch's {exporter} exporter cannot export {type(module).__name__}: "
            f"{message}; try another exporter ({', '.join(EXPORTERS)}) or other inputs"
        ) from error
    finally:
        for part, mode in modes.items():
            part.training = mode


def _export_dynamo(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> None:
    import torch

    # The optimizer would merge, transpose and rename the parameters.
    program = torch.onnx.export(
        module, args, kwargs=kwargs, dynamo=True, optimize=False, verbose=False
    )
    assert program is not None and program.exported_program is not None
    outputs = program.model.graph.outputs
    names = _names_of_outputs(program.exported_program)
    if len(names) == len(outputs):
        for value, name in zip(outputs, names, strict=True):
            value.name = name
    program.save(path)


def _names_of_outputs(program: torch.export.ExportedProgram) -> list[str]:
    from torch.utils import _pytree

    signature = program.module_call_graph[0].signature
    if signature is None:
        return []
    spec = signature.out_spec
    return leaf_names(
        _pytree.tree_unflatten([object()] * spec.num_leaves, spec), "output"
    )


def _export_torchscript(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> None:
    """
    The older exporter takes every argument that is not given for an input, and
    positional tensors only: it traces a forward of just the tensors that were given.
    """
    import torch
    from torch.utils import _pytree

    leaves, spec = _pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    names = leaf_names(dict(bound.arguments), "input")
    forward, patched = module.forward, module.__dict__.get("forward")
    output_names: list[str] = []

    def traced_forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        inner_args, inner_kwargs = _pytree.tree_unflatten(values, spec)
        output = forward(*inner_args, **inner_kwargs)
        output_names[:] = leaf_names(output, "output")
        return tuple(_pytree.tree_leaves(output))

    module.forward = traced_forward
    try:
        with torch.no_grad():
            traced_forward(*(leaves[i] for i in places))
        torch.onnx.export(
            module,
            tuple(leaves[i] for i in places),
            path,
            dynamo=False,
            input_names=[names[i] for i in places],
            output_names=output_names,
            # Folding would transpose and rename the parameters.
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )
    finally:
        if patched is None:
            del module.forward
        else:
            module.forward = patched


def leaf_names(structure: Any, default: str) -> list[str]:
    """
    A name for each leaf of nested dictionaries, lists and tuples: its path, or
    `default` for a structure that is itself a leaf.
    """
    if isinstance(structure, Mapping):
        items = list(structure.items())
    elif isinstance(structure, list | tuple):
        items = list(enumerate(structure))
    else:
        return [default]
    names: list[str] = []
    for key, value in items:
        path = str(key) if isinstance(key, str) else f"{default}{key}"
        if isinstance(value, Mapping | list | tuple):
            names += [f"{path}.{inner}" for inner in leaf_names(value, "")]
        else:
            names.append(path)
    return names
