"""
Exports modules as ONNX models, with whichever of PyTorch's two exporters can write
them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from distir.errors import DistIRError, one_of
from distir.frontends.torch.export.failures import (
    module_that_failed,
    quiet,
    reason,
)
from distir.frontends.torch.modules.inputs import distinct
from distir.frontends.torch.modules.meta import (
    any_without_value,
    lacks_values,
    without_values,
)
from distir.frontends.torch.modules.state import training_norms, unchanged
from distir.frontends.torch.trust import Trust
from distir.system.garbage import lasting_imports

if TYPE_CHECKING:
    import torch

    from distir.frontends.torch.export.exported_module import ExportedModule
    from distir.frontends.torch.export.opaque import OpaquePart

Exporter = Literal["dynamo", "torchscript"]
EXPORTERS: tuple[Exporter, ...] = ("dynamo", "torchscript")
"""The names of PyTorch's newer and older exporters, in this order."""

_LIBRARIES = ("torch.export._trace", "onnxscript.function_libs.torch_lib.ops")
"""
Modules that import nearly all libraries of PyTorch's newer exporter. Nothing depends on
this list but the time of an export.
"""


def export_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    exporter: Exporter | None = None,
    training: bool = False,
    capacity_factor: float | None = None,
    equal_features: bool = False,
    trust: Trust = Trust(),
) -> ExportedModule:
    """
    Exports a module as an ONNX model whose large tensors are stored separately.
    `import_torch` describes the options.

    The module is left unchanged. Each tensor among the inputs becomes a separate input,
    even if the same tensor is given twice. The newer exporter writes experts as ops of
    DistIR. Without an `exporter`, the newer exporter is tried first, then, with a
    warning, the older one. Python code whose effect is fixed by the example inputs is
    an error unless `trust` allows it. Raises DistIRError if the module cannot be
    exported.
    """
    from distir.frontends.torch.export.opaque import parts_of

    if exporter is not None:
        one_of("exporter", exporter, EXPORTERS)
    own_args, own_kwargs = distinct(module, args, kwargs)
    wanted = EXPORTERS if exporter is None else (exporter,)
    if lacks_values(module):
        if exporter == "torchscript":
            raise DistIRError(
                f"{type(module).__name__} has parameters or buffers without values, but "
                f"PyTorch's torchscript exporter runs the module and needs their "
                f'values; import it with exporter="dynamo"'
            )
        wanted = EXPORTERS[:1]
    parts = parts_of(module)
    if parts:
        if exporter == "torchscript":
            raise DistIRError(
                f"{parts[0].what} needs PyTorch's newer exporter, as the older one traces "
                f'whatever runs; import the module with exporter="dynamo"'
            )
        wanted = EXPORTERS[:1]
    if equal_features:
        if exporter == "torchscript":
            raise DistIRError(
                "equal_features is for PyTorch's newer exporter; import "
                f'{type(module).__name__} with exporter="dynamo"'
            )
        wanted = EXPORTERS[:1]
    if EXPORTERS[0] in wanted:
        _import_libraries()
    failed: dict[str, str] = {}
    first: Exception | None = None
    for name in wanted:
        outcome = _attempt(
            module,
            own_args,
            own_kwargs,
            name,
            training,
            capacity_factor,
            equal_features,
            failed.get("dynamo"),
            trust,
            parts,
        )
        if not isinstance(outcome, Exception):
            if failed:
                warnings.warn(
                    f"PyTorch's older exporter wrote {type(module).__name__}: what it does "
                    f"for these inputs, whichever way others would go. The newer one "
                    f"cannot: {failed['dynamo']}",
                    stacklevel=3,
                )
            return outcome
        advice = "give other inputs, or change the module"
        if exporter is not None:
            others = ", ".join(EXPORTERS)
            advice = f"try another exporter ({others}) or other inputs"
        where = module_that_failed(module, outcome)
        failed[name] = f"{where}{reason(outcome, advice)}"
        first = first or outcome
    if len(failed) == 1:
        ((name, why),) = failed.items()
        message = f"PyTorch's {name} exporter cannot export"
    else:
        message, why = "neither of PyTorch's exporters can export", failed["dynamo"]
    raise DistIRError(f"{message} {type(module).__name__}: {why}") from first


def _import_libraries() -> None:
    """
    Imports the libraries of PyTorch's newer exporter. PyTorch itself would import them
    in the middle of its work. Here, collections of garbage pass over their many
    objects.
    """
    with lasting_imports():
        for name in _LIBRARIES:
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)


def _attempt(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    exporter: Exporter,
    training: bool,
    capacity_factor: float | None,
    equal_features: bool,
    why_not_newer: str | None,
    trust: Trust,
    parts: Sequence[OpaquePart],
) -> ExportedModule | Exception:
    """
    Exports a module with the exporter `exporter`. Returns the program, or the exception
    that the exporter raised. `why_not_newer` is the reason why the newer exporter
    failed before, or None. `parts` are the opaque parts of the module. Raises
    DistIRError if DistIR refuses the module.
    """
    from distir.frontends.torch.export.dynamo import export_dynamo
    from distir.frontends.torch.export.lost_python import LostPython
    from distir.frontends.torch.export.opaque import observe, opaque_as_ops
    from distir.frontends.torch.export.repetitions import warn_of_repetitions
    from distir.frontends.torch.export.script import export_torchscript, tell_of_stops

    lost = LostPython(module, args, kwargs, training, trust)
    stops: set[str] = set()
    try:
        norms = training_norms(module) if training else {}
        with (
            unchanged(module, None if training else False),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            # PyTorch prints the graph that it cannot trace on.
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            with (
                without_values(module, (tuple(args), kwargs)) as (own_args, own_kwargs),
                quiet("torch.onnx"),
                quiet("torch.fx.experimental.symbolic_shapes"),
            ):
                if (
                    parts
                    and not lacks_values(module)
                    and not any_without_value((own_args, own_kwargs))
                ):
                    observe(module, parts, own_args, own_kwargs)
                with lost.recorded(), opaque_as_ops(parts):
                    if exporter == "dynamo":
                        exported = export_dynamo(
                            *(module, own_args, own_kwargs),
                            *(capacity_factor, equal_features),
                        )
                    else:
                        exported, stops, lost.reads = export_torchscript(
                            module, own_args, own_kwargs
                        )
            if any(part.training for part in module.modules()):
                write_training_mode(exported.model, norms)
    except Exception as error:
        refusal = _refusal(error)
        if refusal is not None:
            raise refusal from error
        return error
    exported.accepted = lost.accepted()
    exported.opaque = parts
    if exporter == "dynamo":
        warn_of_repetitions()
    tell_of_stops(module, stops, training, why_not_newer)
    return exported


def _refusal(error: BaseException) -> DistIRError | None:
    """
    Returns the DistIRError that caused `error`, or None if no DistIRError did. A
    DistIRError is final, because another exporter would write a wrong program.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, DistIRError):
        cause = cause.__cause__
    return cause


_ON = "distir.training_mode"


def write_training_mode(model: ModelProto, norms: dict[str, float]) -> None:
    """
    Writes training modes into an exported model, in place. The newer exporter writes
    batch normalisation without its mode, and both exporters lose the mode of the
    dropout inside attention. `norms` is the result of `training_norms` for the module.
    """
    by_statistics = {f"{name}.running_mean": kept for name, kept in norms.items()}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization" and node.input[3] in by_statistics:
            _train_norm(node, by_statistics[node.input[3]])
        elif node.op_type == "Dropout" and len(node.input) == 2:
            _train_dropout(model, node)


def _train_norm(node: NodeProto, kept: float) -> None:
    others = [a for a in node.attribute if a.name not in ("training_mode", "momentum")]
    del node.attribute[:]
    node.attribute.extend(others)
    node.attribute.append(helper.make_attribute("training_mode", 1))
    node.attribute.append(helper.make_attribute("momentum", kept))
    for statistic in ("mean", "variance")[len(node.output) - 1 :]:
        node.output.append(f"{node.output[0]}.running_{statistic}")


def _train_dropout(model: ModelProto, node: NodeProto) -> None:
    if all(tensor.name != _ON for tensor in model.graph.initializer):
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), _ON))
    node.input.append(_ON)
