"""
Exports modules with PyTorch's newer exporter, which traces a module on tensors without
values.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree

from distir.errors import DistIRError
from distir.frontends.onnx.file import LARGE
from distir.frontends.onnx.names import LINE
from distir.frontends.torch.export.bags import write_bags
from distir.frontends.torch.export.causal_masks import masks_as_they_are
from distir.frontends.torch.export.decompositions import quick_decompositions
from distir.frontends.torch.export.experts import experts_as_ops
from distir.frontends.torch.export.exported_module import ExportedModule, Value
from distir.frontends.torch.export.failures import unwritten_operation
from distir.frontends.torch.export.functions import FunctionsAsOps, scans_as_ops
from distir.frontends.torch.export.gradients import write_stops
from distir.frontends.torch.export.lost_arguments import write_lost_arguments
from distir.frontends.torch.export.masked_scatter import write_masked_scatters
from distir.frontends.torch.export.repetitions import without_repetitions
from distir.frontends.torch.modules.inputs import leaf_names
from distir.frontends.torch.modules.module_lines import module_line

if TYPE_CHECKING:
    import onnx_ir

_STACK = "pkg.torch.onnx.stack_trace"
_UNREAD = (_STACK, "pkg.torch.onnx.class_hierarchy")
"""
The metadata that the exporter writes on each node and that the importer does not read.
Of the stack trace, only the line of the module is kept.
"""


_aten: Any = torch.ops.aten
_CHECKS: tuple[Any, ...] = (
    _aten._assert_scalar.default,
    _aten._assert_async.default,
    _aten._assert_async.msg,
)
_READS: tuple[Any, ...] = (
    _aten.item.default,
    _aten._local_scalar_dense.default,
    _aten._is_all_true.default,
)
"""
Operations that read the value of a tensor. Dead-code elimination keeps them even if
nothing uses the result, because reading waits for a device.
"""


class _SuppressedFailures(contextlib.suppress):
    """
    A context manager that suppresses all errors except DistIRError. A DistIRError means
    that DistIR refuses the module, which no other exporter could change.
    """

    def __exit__(self, kind: Any, *others: Any) -> bool:
        refused = kind is not None and issubclass(kind, DistIRError)
        return not refused and bool(super().__exit__(kind, *others))


def export_dynamo(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    capacity_factor: float | None = None,
    equal_features: bool = False,
) -> ExportedModule:
    """
    Exports a module with PyTorch's newer exporter. The outputs are named by their paths
    in the module's result.

    `capacity_factor` limits the tokens of an expert (see `experts_as_ops`), and
    `equal_features` is the option of `import_torch`. Raises any error that the exporter
    or the module raises.
    """

    source: torch.nn.Module | torch.export.ExportedProgram = module
    # PyTorch's kernels of attention store their results in different ways, and a trace
    # leaves out copies for the one that it meets. Each trace must meet the same.
    with sdpa_kernel(SDPBackend.MATH), without_repetitions():
        # If this fails, the exporter tries other ways and reports the problem.
        with (
            experts_as_ops(capacity_factor, _batch(args, kwargs)),
            scans_as_ops(),
            masks_as_they_are(),
            FunctionsAsOps(),
            _SuppressedFailures(Exception),
            torch.enable_grad(),
        ):
            source = torch.export.export(module, args, kwargs, strict=False)
        if isinstance(source, torch.export.ExportedProgram):
            write_stops(source)
            write_bags(source)
            write_masked_scatters(source, equal_features)
            remove_checks(source)
            write_lost_arguments(source)
        # The optimizer would merge, transpose and rename the parameters.
        with quick_decompositions() as decomposed:
            try:
                program = torch.onnx.export(
                    source,  # pyright: ignore[reportArgumentType]
                    args,
                    kwargs=kwargs,
                    dynamo=True,
                    optimize=False,
                    verbose=False,
                )
            except Exception as error:
                unwritten = unwritten_operation(error, decomposed)
                if unwritten is None:
                    raise
                raise unwritten from error
    assert program is not None and program.exported_program is not None
    outputs = program.model.graph.outputs
    names = _names_of_outputs(program.exported_program)
    if len(names) == len(outputs):
        for value, name in zip(outputs, names, strict=True):
            value.name = name
    exported = _without_tensors(program.model)
    exported.output = _structure_of_output(program.exported_program)
    return exported


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """
    Returns the size of the first dimension of the first input that has at least two
    dimensions, or 1 if there is no such input.
    """
    for value in _pytree.tree_leaves((args, kwargs)):
        if isinstance(value, torch.Tensor) and value.dim() > 1:
            return value.shape[0]
    return 1


def _without_tensors(model: onnx_ir.Model) -> ExportedModule:
    """
    Returns the model as an ONNX message without large tensors and tensors without
    values. These tensors are in `values` of the result instead.
    """
    import onnx_ir

    for node in model.graph.all_nodes():
        if line := module_line(node.metadata_props.get(_STACK, "")):
            node.metadata_props[LINE] = line
        for key in _UNREAD:
            node.metadata_props.pop(key, None)
    values: dict[str, Value | None] = {}
    for name, value in model.graph.initializers.items():
        held = value.const_value
        if held is None:
            continue
        is_fake = isinstance(held.raw, FakeTensor)
        if not is_fake and held.size <= LARGE:
            continue
        values[name] = None if is_fake else held.numpy()
        shape = onnx_ir.Shape(held.shape.numpy())
        value.const_value = onnx_ir.ExternalTensor(
            name, None, None, held.dtype, shape=shape, name=name
        )
    return ExportedModule(onnx_ir.to_proto(model), values)


def _output(program: torch.export.ExportedProgram) -> _pytree.TreeSpec | None:
    """Returns the structure of the outputs, or None if it is not known."""
    signature = program.module_call_graph[0].signature
    return None if signature is None else signature.out_spec


def _structure_of_output(program: torch.export.ExportedProgram) -> str:
    """
    Returns the structure of the outputs as text, or "" if there is no text from which
    PyTorch makes the same structure.
    """
    spec = _output(program)
    if spec is None:
        return ""
    try:
        text = _pytree.treespec_dumps(spec)
        return text if _pytree.treespec_loads(text) == spec else ""
    except (NotImplementedError, TypeError):  # a class, or keys, that have no text
        return ""


def _names_of_outputs(program: torch.export.ExportedProgram) -> list[str]:
    spec = _output(program)
    if spec is None:
        return []
    return leaf_names(
        _pytree.tree_unflatten([object()] * spec.num_leaves, spec), "output"
    )


def remove_checks(program: torch.export.ExportedProgram) -> None:
    """
    Removes checks of values (`torch._check_tensor_all`, `torch._assert_async`) from a
    program, in place, together with the operations that only these checks use.
    """
    graph = program.graph
    checks = [n for n in graph.nodes if n.target in _CHECKS]
    if not checks:
        return
    for check in checks:
        graph.erase_node(check)
    for node in reversed(list(graph.nodes)):
        is_symbolic = isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool)
        if not node.users and (node.target in _READS or is_symbolic):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
