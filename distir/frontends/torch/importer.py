"""Imports PyTorch modules as sequential programs, through PyTorch's two ONNX exporters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import IntegerType, StringAttr, TensorType, UnitAttr

from distir.dialects.dist_attributes import DOUBT, FROZEN, NAME, ROLE
from distir.frontends.onnx.weight_roles import matching
from distir.frontends.torch.export.exporter import Exporter, export_module
from distir.frontends.torch.modules.meta import lacks_values
from distir.frontends.torch.trust import Trust
from distir.program import argument_attributes, entry_function, set_argument_attributes
from distir.program.doubts import UNKNOWN
from distir.system.garbage import no_garbage_collection

if TYPE_CHECKING:
    import torch

    from distir.frontends.imported_model import ImportedModel

_UNKNOWN = StringAttr(UNKNOWN)


def import_torch(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    exporter: Exporter | None = None,
    training: bool = False,
    trainable: Sequence[str] = (),
    frozen: Sequence[str] = (),
    capacity_factor: float | None = None,
    equal_features: bool = False,
    copy: bool = True,
    check: bool = True,
    allow: Sequence[str] = (),
) -> ImportedModel:
    """
    Imports the inference program of a module for inputs of the shapes of `args` and
    `kwargs`. With `training`, it is the program of which `differentiate` makes a training
    step: each part of the module is in its own mode, so that parts in `train()` have
    dropout and use the statistics of the batch, and parts in `eval()` do not. Parameters
    have the names of the module's state dict; those that require no gradient are frozen,
    unless the patterns of names `trainable` and `frozen` (see `import_onnx`) say otherwise.

    Parameters and inputs may be on the meta device or fake tensors: the program is the
    same, and its weights lack their values. Buffers without values, which a program reads as
    constants, are computed if they belong to Hugging Face's models and no checkpoint has
    them.

    Mixtures of experts of Hugging Face become ops of `train`, whichever implementation their
    configuration names. Every expert takes all tokens that choose it; with `capacity_factor`,
    no more of each sequence than evenly dealt tokens would give it, times that factor.

    `masked_scatter`, which models use to put the features of images or sounds among words,
    counts places through the whole batch. `equal_features` asserts that each sample has as
    many places as features, so that these belong to their sample, and samples can be split
    over devices and into micro-batches. No shape tells whether that is so: the results of a
    sample that has another number of places are NaN.

    `exporter` is one of PyTorch's; None tries the newer, then the older one. Without `copy`
    the weights share the memory of the module.

    Python of the module runs once, when it is exported. Where that shows (Python reads values
    of tensors or draws random numbers, a function has a backward of its own), it is an error
    that names the line. With `check` the program is also run beside the module, if that takes
    seconds: on the example inputs, and on others of the same shapes; in training mode the
    module runs twice. A difference is an error that says in which part it begins. The module,
    with its buffers and modes, and random numbers are left as they were. `allow` has the
    names of differences that are accepted (`trust.ACCEPTED`). Why a program was not
    compared is among the `notes` of the result; with `capacity_factor` it computes something
    else on purpose. Raises DistIRError.
    """
    from distir.frontends.onnx.importer import import_onnx
    from distir.frontends.torch.checks.comparison import compare
    from distir.frontends.torch.modules.runs import ModuleCall

    trust = Trust.of(check, allow)
    with no_garbage_collection():
        exported = export_module(
            module,
            args,
            kwargs,
            exporter=exporter,
            training=training,
            capacity_factor=capacity_factor,
            equal_features=equal_features,
            trust=trust,
        )
        imported = import_onnx(exported.model, values=exported.values)
        # Tokens beyond the capacity of an expert are dropped by the program alone.
        if check and capacity_factor is None and not lacks_values(module):
            why_not = compare(
                module,
                ModuleCall(args, kwargs or {}),
                imported,
                exported,
                trust,
                training=training,
                same_rows=equal_features,
            )
            if why_not is not None:
                imported.notes = [
                    f"the program was not compared with {type(module).__name__}: {why_not}"
                ]
    if copy:
        imported.weights = {n: a.copy() for n, a in imported.weights.items()}
    _mark(module, imported, trainable, frozen)
    return imported


def import_exported(module: torch.nn.Module, path: str | Path) -> ImportedModel:
    """
    Does what `import_torch` does, from a file that `export_onnx` wrote for the module; the
    file is not needed afterwards. Raises DistIRError.
    """
    from distir.frontends.onnx.importer import import_onnx

    imported = import_onnx(path)
    # The file may be deleted, so mapped tensors must be read now.
    imported.weights = {n: a.copy() for n, a in imported.weights.items()}
    _mark(module, imported, (), ())
    return imported


def _mark(
    module: torch.nn.Module,
    imported: ImportedModel,
    trainable: Sequence[str],
    frozen: Sequence[str],
) -> None:
    """Marks which weights are parameters, and which are frozen, as the module says."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    function = entry_function(imported.module)
    attributes = argument_attributes(function)
    weights = [
        text
        for each, type_ in zip(
            attributes, function.function_type.inputs.data, strict=True
        )
        if ROLE.of(each) in ("parameter", "constant")
        and (text := NAME.of(each)) is not None
        and isinstance(type_, TensorType)
        and not isinstance(type_.element_type, IntegerType)
    ]
    train = matching(trainable, weights, "trainable")
    freeze = matching(frozen, weights, "frozen")
    for each in attributes:
        name = NAME.of(each)
        if ROLE.of(each) not in ("parameter", "constant") or name is None:
            continue
        known = name in parameters or name in buffers
        if name in train or name in freeze or (known and each.get(DOUBT) == _UNKNOWN):
            each.pop(DOUBT, None)
        is_parameter = name in parameters or name in train or DOUBT in each
        if not is_parameter:
            each[ROLE] = ROLE.attr("constant")
            continue
        each[ROLE] = ROLE.attr("parameter")
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
    allow: Sequence[str] = (),
) -> None:
    """
    Writes the program of a module (see `import_torch`) to an ONNX file in the form that
    `import_onnx` reads best: with static shapes, and with the names of modules, parameters,
    inputs and outputs. Large weights may go to a file beside it. The module is left as it
    was. It is not compared with the file; `allow` is as in `import_torch`. Raises
    DistIRError.
    """
    exported = export_module(
        module,
        args,
        kwargs,
        exporter=exporter,
        training=training,
        trust=Trust.of(True, allow),
    )
    exported.save(path)
