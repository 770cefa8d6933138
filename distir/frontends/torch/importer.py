"""
Imports PyTorch modules as sequential programs, through one of PyTorch's two ONNX
exporters.
"""

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
    Imports a module as an inference program for inputs with the shapes of `args` and
    `kwargs`.

    With `training`, the result is the program from which `differentiate` makes a
    training step. Each part of the module is then in its own mode: parts in `train()`
    have dropout and use the statistics of the batch, and parts in `eval()` do not.
    Parameters have the names of the module's state dict. Parameters that require no
    gradient are frozen, unless the patterns of names `trainable` and `frozen` (see
    `import_onnx`) say otherwise.

    Parameters and inputs may be on the meta device or fake tensors: the program is the
    same, and its weights have no values. Programs read buffers as constants. Buffers
    without values are computed if they belong to a Hugging Face model and are not
    stored in checkpoints.

    Hugging Face's mixtures of experts become ops of `train`, whichever implementation
    their configuration names. Every expert takes all tokens that choose it. With
    `capacity_factor`, an expert takes at most this factor times its even share of each
    sequence's tokens.

    Models use `masked_scatter` to put features of images or sounds among words; this
    operation counts the positions of features through the whole batch. `equal_features`
    asserts that each sample has as many positions as features. The features then belong
    to their sample, and samples can be split over devices and into micro-batches.
    Shapes cannot prove the assertion: the results of a sample with more or fewer
    positions are NaN.

    `exporter` is the name of one of PyTorch's exporters; None tries the newer exporter,
    then the older one. Without `copy`, the weights share the memory of the module.

    The module's Python code runs once, during the export. If this makes a difference,
    an error names the line: Python reads values of tensors or draws random numbers, or
    a function has a custom backward function. With `check`, the program is also
    compared with the module, if this takes only seconds, on the example inputs and on
    different values of the same shapes; in training mode the module runs twice. On a
    difference, an error names the part of the module where the difference begins.
    `allow` lists the names of differences that are accepted (`trust.ACCEPTED`).

    The module, with its buffers and modes, and the states of random numbers are left
    unchanged. If a program was not compared, the `notes` of the result give the reason.
    With `capacity_factor` programs are never compared, because their results differ on
    purpose. Raises DistIRError if the module cannot be imported or differs.
    """
    from distir.frontends.onnx.importer import import_onnx

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
        imported.output = exported.output
        # Tokens beyond the capacity of an expert are dropped by the program alone.
        if check:
            # The interpreter takes long to import.
            from distir.frontends.torch.checks.comparison import compare
            from distir.frontends.torch.checks.opaque import check_opaque
            from distir.frontends.torch.modules.runs import ModuleCall

            imported.notes = check_opaque(exported.opaque)
            if capacity_factor is None and not lacks_values(module):
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
                        *imported.notes,
                        f"the program was not compared with {type(module).__name__}: "
                        f"{why_not}",
                    ]
    if copy:
        imported.weights = {n: a.copy() for n, a in imported.weights.items()}
    _mark(module, imported, trainable, frozen)
    return imported


def import_exported(module: torch.nn.Module, path: str | Path) -> ImportedModel:
    """
    Imports an ONNX file that `export_onnx` wrote for `module`, with the same result as
    `import_torch`. The file is not needed afterwards. Raises DistIRError if the file
    cannot be imported.
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
    """
    Marks in the program which weights are parameters, and which are frozen. The module
    decides, unless a name matches the patterns `trainable` or `frozen`.
    """
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
    Exports a module to an ONNX file in the form that `import_onnx` reads best: with
    static shapes, and with the names of modules, parameters, inputs and outputs.

    Large weights may be stored in a second file beside `path`. The module is left
    unchanged. The file is not compared with the module. The options have the same
    meaning as in `import_torch`. Raises DistIRError if the module cannot be exported.
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
