"""
Writes operations of PyTorch that its newer exporter cannot write in terms of those that it
can.

For such operations the exporter traces a program a second time, which takes longer than
everything else that it does. Most programs have few of them; here they are replaced one by
one.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import onnxscript
import torch

from distir.frontends.torch.export.graphs import insert_traced
from distir.frontends.torch.export.strides import write_strides

if TYPE_CHECKING:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

_REGION: Any = torch.ops.higher_order.wrap_with_set_grad_enabled
_CASTS: tuple[Any, ...] = (
    torch.ops.aten.to.dtype,
    torch.ops.aten.to.dtype_layout,
    torch.ops.aten.to.device,
)
_ASSERTIONS: tuple[Any, ...] = (
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
)
"""Operations that check types and shapes; the exporter removes them itself."""

_registries: dict[Any, ONNXRegistry] = {}


@contextlib.contextmanager
def quick_decompositions() -> Generator[list[torch.export.ExportedProgram]]:
    """
    A context manager inside which PyTorch's exporter reads its library of functions once
    per process, and traces only those programs a second time that `decompose` cannot
    handle. Yields a list, to which programs are added as the exporter is to write them.
    """
    from torch.onnx._internal.exporter import _fx_passes
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    trace_again = _fx_passes.decompose_with_registry
    original, read = ONNXRegistry.__dict__["from_torchlib"], ONNXRegistry.from_torchlib

    programs: list[torch.export.ExportedProgram] = []

    def decomposed(
        program: torch.export.ExportedProgram, registry: ONNXRegistry
    ) -> torch.export.ExportedProgram:
        if not decompose(program, registry):
            program = trace_again(program, registry)
        write_strides(program)
        programs.append(program)
        return program

    def read_once(*args: Any, **kwargs: Any) -> ONNXRegistry:
        key = (args, tuple(kwargs.items()))
        if key not in _registries:
            _registries[key] = read(*args, **kwargs)
            _registries[key].register_op(
                torch.ops.aten.unsqueeze.default, _unsqueeze_complex, is_complex=True
            )
        return _registries[key]

    _fx_passes.decompose_with_registry = decomposed
    ONNXRegistry.from_torchlib = staticmethod(read_once)  # type: ignore[method-assign]
    try:
        yield programs
    finally:
        _fx_passes.decompose_with_registry = trace_again
        ONNXRegistry.from_torchlib = original


def _unsqueeze_complex(x: onnxscript.FLOAT, dim: int) -> Any:
    """
    The exporter's form of complex numbers are pairs along a last dimension; it knows most
    operations on them, but not this one, by which rotary embeddings reach all heads.
    """
    write: Any = onnxscript.onnx_opset.opset18.Unsqueeze
    return write(x, [dim if dim >= 0 else dim - 1])


@functools.cache
def _known(registry: ONNXRegistry) -> tuple[set[Any], dict[Any, Callable[..., Any]]]:
    """
    Returns the operations that the exporter can write, and the decompositions of others.
    """
    from torch.onnx._internal.exporter import _decomp

    written: set[Any] = set(_decomp.get_onnx_implemented_overloads(registry))
    table: dict[Any, Any] = _decomp.create_onnx_friendly_decomposition_table(written)
    return written, table


def decompose(program: torch.export.ExportedProgram, registry: ONNXRegistry) -> bool:
    """
    Replaces the operations of a program that the exporter cannot write, in place. Returns
    False for a program for which that is impossible, or that writes to tensors; it is left
    as it was.
    """
    written, table = _known(registry)
    graph = program.graph
    regions = [n for n in _calls(graph) if n.target is _REGION]
    bodies = [_body(program, region) for region in regions]
    everything = [*_calls(graph), *(n for body in bodies for n in _calls(body))]
    for node in everything:
        target: Any = node.target
        if target in (_REGION, operator.getitem):
            continue
        schema = getattr(target, "_schema", None)
        if schema is None or schema.is_mutable:
            return False
        known = target in written or target in table or target in _CASTS
        if not known and target not in _ASSERTIONS:
            return False
    if any(n.op == "get_attr" or n.target is _REGION for b in bodies for n in b.nodes):
        return False
    # The signature tells results by the names of the ops that compute them.
    replaced = [n for n in _calls(graph) if n.target not in written]
    ends = set(next(iter(reversed(graph.nodes))).all_input_nodes)
    if ends & {*replaced, *(user for region in regions for user in region.users)}:
        return False
    for region, body in zip(regions, bodies, strict=True):
        _inline(graph, region, body)
    for node in _calls(graph):
        if node.target in _CASTS:
            _replace_cast(graph, node)
        elif node.target in table:
            _expand(graph, node, table)
    graph.eliminate_dead_code()
    program.graph_module.delete_all_unused_submodules()
    program.graph_module.recompile()
    return True


def _calls(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _body(
    program: torch.export.ExportedProgram, region: torch.fx.Node
) -> torch.fx.Graph:
    """Returns the graph of a region in which gradients are on or off."""
    where: Any = region.args[1]
    body: Any = getattr(program.graph_module, where.target)
    return body.graph


def _inline(graph: torch.fx.Graph, region: torch.fx.Node, body: torch.fx.Graph) -> None:
    """
    Expands a region where it stands. Where gradients end has been written into the graph
    before.
    """
    inputs = iter(region.args[2:])
    made: dict[torch.fx.Node, Any] = {}
    results: Any = ()
    with graph.inserting_before(region):
        for node in body.nodes:
            if node.op == "placeholder":
                made[node] = next(inputs)
            elif node.op == "output":
                results = torch.fx.map_arg(node.args[0], made.__getitem__)
            else:
                made[node] = graph.node_copy(node, made.__getitem__)
    for user in list(region.users):
        place: Any = user.args[1]
        user.replace_all_uses_with(results[place])
        graph.erase_node(user)
    graph.erase_node(region)


def _replace_cast(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Replaces a cast to the type that a tensor has by the tensor; other casts remain."""
    source: Any = node.args[0]
    if source.meta["val"].dtype == node.meta["val"].dtype:
        node.replace_all_uses_with(source)
    else:
        with graph.inserting_before(node):
            cast = graph.call_function(
                torch.ops.aten._to_copy.default,
                (source,),
                {"dtype": node.meta["val"].dtype},
            )
        cast.meta.update(node.meta)
        node.replace_all_uses_with(cast)
    graph.erase_node(node)


def _expand(graph: torch.fx.Graph, node: torch.fx.Node, table: dict[Any, Any]) -> None:
    """Replaces an operation by those that its entry in a table uses."""
    target: Any = node.target
    operands = node.all_input_nodes

    def computed(*values: Any) -> Any:
        by_operand = dict(zip(operands, values, strict=True))
        args, kwargs = torch.fx.map_arg(
            (node.args, node.kwargs), by_operand.__getitem__
        )
        return target(*args, **kwargs)

    result = insert_traced(graph, node, computed, operands, table)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
