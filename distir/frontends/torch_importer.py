"""PyTorch modules as sequential programs, through PyTorch's two ONNX exporters."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import tempfile
import warnings
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from xdsl.dialects.builtin import StringAttr, UnitAttr

from distir.dialects.dist import DOUBT, FROZEN, NAME, ROLE
from distir.doubts import UNKNOWN
from distir.errors import DistIRError, listed, one_of
from distir.frontends.torch_modes import as_it_is, training_norms, write_training_mode
from distir.frontends.weight_roles import matching
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

_UNKNOWN = StringAttr(UNKNOWN)

_KNOWN_REASONS = {
    "grouped_mm": (
        "its experts run as grouped_mm, which has no ONNX function",
        'call model.set_experts_implementation("batched_mm") before',
    ),
    "DynamicCache": (
        "it returns a cache of keys and values, which is no tensor",
        "give it use_cache=False, as an input or in its config",
    ),
}
"""By a word of PyTorch's message: what is wrong, and what to do."""


def import_torch(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    exporter: Exporter = "dynamo",
    training: bool = False,
    trainable: Sequence[str] = (),
    frozen: Sequence[str] = (),
) -> ImportedModel:
    """
    The inference program of a module for inputs of the shapes of `args` and `kwargs`.
    With `training` what `differentiate` makes a training step of: each part of the module
    is in its own mode, so that those in `train()` have dropout and use the statistics of
    the batch, and those in `eval()` do not. Parameters have the names of the module's
    state dict; those that require no gradient are frozen, but for what `trainable` and
    `frozen`, patterns of names, say (see `import_onnx`). Raises DistIRError.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_onnx(module, args, path, kwargs, exporter=exporter, training=training)
        return import_exported(module, path, trainable=trainable, frozen=frozen)


def import_exported(
    module: torch.nn.Module,
    path: str | Path,
    *,
    trainable: Sequence[str] = (),
    frozen: Sequence[str] = (),
) -> ImportedModel:
    """
    What `import_torch` gives, from a file that `export_onnx` wrote for the module and that
    is not needed afterwards. Raises DistIRError.
    """
    from distir.frontends.onnx_importer import import_onnx

    imported = import_onnx(path)
    # The file may go away; what is mapped from it has to be read.
    imported.weights = {n: a.copy() for n, a in imported.weights.items()}
    _mark(module, imported, trainable, frozen)
    return imported


def _mark(
    module: torch.nn.Module,
    imported: ImportedModel,
    trainable: Sequence[str],
    frozen: Sequence[str],
) -> None:
    """Marks what the module says: which weights are parameters, and which are frozen."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    function = entry_function(imported.module)
    attributes = argument_attributes(function)
    weights = [n for n, a in imported.weights.items() if a.dtype.kind not in "biu"]
    train = matching(trainable, weights, "trainable")
    freeze = matching(frozen, weights, "frozen")
    for each in attributes:
        name = text_attribute(each, NAME)
        if text_attribute(each, ROLE) not in ("parameter", "constant") or name is None:
            continue
        known = name in parameters or name in buffers
        if name in train or name in freeze or (known and each.get(DOUBT) == _UNKNOWN):
            each.pop(DOUBT, None)
        is_parameter = name in parameters or name in train or DOUBT in each
        if not is_parameter:
            each[ROLE] = StringAttr("constant")
            continue
        each[ROLE] = StringAttr("parameter")
        fixed = name in parameters and not parameters[name].requires_grad
        if name not in train and (name in freeze or fixed):
            each[FROZEN] = UnitAttr()
    set_argument_attributes(function, attributes)
    imported.guessed = ()


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
    one_of("exporter", exporter, EXPORTERS)
    from distir.frontends.torch_gradients import own_backwards

    modes = {m: m.training for m in module.modules()}
    if not training:
        module.eval()
    norms = training_norms(module)
    stops: set[str] = set()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with as_it_is(module), quiet("torch.onnx"), own_backwards() as backwards:
                if exporter == "dynamo":
                    _export_dynamo(module, tuple(args), dict(kwargs or {}), str(path))
                else:
                    stops = _export_torchscript(
                        module, tuple(args), dict(kwargs or {}), str(path)
                    )
        if any(part.training for part in module.modules()):
            write_training_mode(path, norms)
    except Exception as error:
        raise DistIRError(
            f"PyTorch's {exporter} exporter cannot export {type(module).__name__}: "
            + reason(
                error, f"try another exporter ({', '.join(EXPORTERS)}) or other inputs"
            )
        ) from error
    finally:
        for part, mode in modes.items():
            part.training = mode
    warn_of_backwards(module, backwards)
    _tell_of_stops(module, stops, training)


@contextlib.contextmanager
def quiet(name: str) -> Generator[None]:
    """Inside, a logger of PyTorch says nothing: what goes wrong is told by our errors."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def reason(error: BaseException, advice: str) -> str:
    """
    What is wrong and what to do about it, for an error of PyTorch's exporters: these raise
    errors of every kind, of their own and of the model's; the first of a chain says what is
    wrong. `advice` is for those that are not known.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    message = next(iter(str(error).strip().splitlines()), type(error).__name__)
    for word, (what, known_advice) in _KNOWN_REASONS.items():
        if word in message:
            return f"{what}; {known_advice}"
    return f"{message}; {advice}"


def warn_of_backwards(module: torch.nn.Module, backwards: set[str]) -> None:
    """Warns of functions whose own backward the exporters lost."""
    if backwards:
        warnings.warn(
            f"{type(module).__name__} runs {listed(sorted(backwards))}, with a backward of "
            f"its own, which PyTorch's exporters do not write: the gradient will be the "
            f"derivative of the forward. Where that is something else (a straight-through "
            f"estimator), write it with detach() instead",
            stacklevel=4,
        )


def _tell_of_stops(module: torch.nn.Module, stops: set[str], training: bool) -> None:
    """Refuses to train what the older exporter lost; else warns of it."""
    if not stops:
        return
    message = (
        f"{type(module).__name__} stops gradients ({listed(sorted(stops))}), which "
        f"PyTorch's torchscript exporter does not write: the program computes the same, "
        f'but has other gradients; import it with exporter="dynamo"'
    )
    if training:
        raise DistIRError(message)
    warnings.warn(message, stacklevel=4)


def _export_dynamo(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> None:
    import torch

    from distir.frontends.torch_gradients import write_stops

    source: torch.nn.Module | torch.export.ExportedProgram = module
    # What fails here the exporter tries in other ways, and says what is wrong.
    with contextlib.suppress(Exception), torch.enable_grad():
        source = torch.export.export(module, args, kwargs, strict=False)
    if isinstance(source, torch.export.ExportedProgram):
        write_stops(source)
    # The optimizer would merge, transpose and rename the parameters.
    program = torch.onnx.export(
        source,  # pyright: ignore[reportArgumentType]
        args,
        kwargs=kwargs,
        dynamo=True,
        optimize=False,
        verbose=False,
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
) -> set[str]:
    """
    The older exporter takes every argument that is not given for an input, and
    positional tensors only: it traces a forward of just the tensors that were given.
    Gives what stops gradients in the module and is not in the file.
    """
    import torch
    from torch.utils import _pytree

    from distir.frontends.torch_gradients import LostStops

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
        with torch.enable_grad(), LostStops() as stops:
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
    return stops.found


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
