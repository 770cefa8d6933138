"""
Replaces PyTorch operations that the newer exporter cannot write by operations that it
can write.

Without this, the exporter traces a program with such operations a second time, which
takes longer than all of its other work. Most programs have few of these operations, so
this file replaces them one by one. An example is `as_strided`, which refers to
positions in memory; models use it for overlapping windows, and PyTorch for pooling.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Generator, Sequence
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxscript
import torch
from torch import Tensor

from distir.errors import DistIRError
from distir.frontends.torch.export.graphs import insert_traced

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
"""Operations that check types and shapes. The exporter removes them itself."""

_registries: dict[Any, ONNXRegistry] = {}


@contextlib.contextmanager
def quick_decompositions() -> Generator[list[torch.export.ExportedProgram]]:
    """
    A context manager that makes PyTorch's exporter faster. Inside it, the exporter
    reads its library of functions once per process, and traces a program a second time
    only if `decompose` cannot handle it.

    Yields a list that receives the final form of each exported program.
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
            with _without_signatures():
                _registries[key] = read(*args, **kwargs)
            _registries[key].register_op(
                torch.ops.aten.unsqueeze.default, _unsqueeze_complex, is_complex=True
            )
            _registries[key].register_op(
                torch.ops.aten.scalar_tensor.default, _scalar_tensor
            )
        return _registries[key]

    _fx_passes.decompose_with_registry = decomposed
    ONNXRegistry.from_torchlib = staticmethod(read_once)  # type: ignore[method-assign]
    try:
        yield programs
    finally:
        _fx_passes.decompose_with_registry = trace_again
        ONNXRegistry.from_torchlib = original


@contextlib.contextmanager
def _without_signatures() -> Generator[None]:
    """
    A context manager inside which the `function_ir` of functions of the exporter's
    library has only the domain of the function. Reading the library needs nothing else,
    and the full property is slow: it parses the source text of 500 functions.
    """
    from onnxscript._internal.values import TracedOnnxFunction

    original = TracedOnnxFunction.__dict__.get("function_ir")
    if not isinstance(original, property):
        yield
        return

    def with_domain(self: Any) -> Any:
        return SimpleNamespace(domain=self.opset.domain)

    TracedOnnxFunction.function_ir = property(with_domain)  # type: ignore[method-assign]
    try:
        yield
    finally:
        TracedOnnxFunction.function_ir = original  # type: ignore[method-assign]


def _unsqueeze_complex(x: onnxscript.FLOAT, dim: int) -> Any:
    """
    Writes `unsqueeze` of complex numbers, which are pairs along the last dimension.
    Rotary embeddings use this operation, which the exporter cannot write.
    """
    write: Any = onnxscript.onnx_opset.opset18.Unsqueeze
    return write(x, [dim if dim >= 0 else dim - 1])


_COMPLEX = {14: np.float32, 15: np.float64}
"""The type of the two parts of a complex number, by ONNX's number of the type."""


def _scalar_tensor(
    s: float,
    dtype: int = 1,
    layout: str = "",
    device: str = "",
    pin_memory: bool = False,
) -> Any:
    """
    Writes a Python number as a constant of the type `dtype`, given as ONNX's number of
    the type. The exporter's own function would first round the number to 32 bits. A
    complex number becomes a pair of its real and imaginary part, as in all complex
    tensors of the exporter.
    """
    from onnx import helper, numpy_helper

    write: Any = onnxscript.onnx_opset.opset18
    kind = dtype if dtype > 0 else 1
    if kind in _COMPLEX:
        number = complex(s)
        pair = np.array([number.real, number.imag], _COMPLEX[kind])
        return write.Constant(value=numpy_helper.from_array(pair))
    if not isinstance(s, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        return write.Cast(s, to=kind)  # a value that the program computes
    number = np.asarray(s).astype(helper.tensor_dtype_to_np_dtype(kind))
    return write.Constant(value=numpy_helper.from_array(number))


@functools.cache
def _known(registry: ONNXRegistry) -> tuple[set[Any], dict[Any, Callable[..., Any]]]:
    """
    Returns the operations that the exporter can write, and decompositions of operations
    that it cannot write.
    """
    from torch.onnx._internal.exporter import _decomp

    written: set[Any] = set(_decomp.get_onnx_implemented_overloads(registry))
    table: dict[Any, Any] = _decomp.create_onnx_friendly_decomposition_table(written)
    return written, table


def decompose(program: torch.export.ExportedProgram, registry: ONNXRegistry) -> bool:
    """
    Replaces, in place, the operations of a program that the exporter cannot write.
    Returns False, and leaves the program unchanged, if this is not possible or the
    program writes to tensors in place.
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
    """Returns the graph of a region in which gradients are switched on or off."""
    where: Any = region.args[1]
    body: Any = getattr(program.graph_module, where.target)
    return body.graph


def _inline(graph: torch.fx.Graph, region: torch.fx.Node, body: torch.fx.Graph) -> None:
    """
    Replaces the call of the region `region` by the ops of its body `body`, in place.
    Stop-gradient markers are already in the graph.
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
    """
    Replaces the cast `node`, in place: a cast to the type that the tensor already has
    is removed, and any other cast becomes `_to_copy`.
    """
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
    """Replaces an operation by its decomposition in `table`."""
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


_STRIDED: Any = torch.ops.aten.as_strided.default
_RESTRIDED: Any = torch.ops.aten.as_strided_.default
"""
The in-place form of `as_strided`. PyTorch's pooling applies it to means that it has
just made.
"""


def write_strides(program: torch.export.ExportedProgram) -> None:
    """
    Replaces every `as_strided` by a selection of elements, in place. If each row of the
    result comes from the same row of the tensor, rows are selected separately, so that
    batches and heads stay apart. Raises DistIRError if the elements of a tensor do not
    fill one contiguous part of memory.
    """
    graph = program.graph
    strided = [n for n in graph.nodes if _is_strided(n)]
    for node in strided:
        result = _written(graph, node)
        node.replace_all_uses_with(result)
        # The signature tells results by the names of the ops that compute them.
        program.graph_signature.replace_all_uses(node.name, result.name)
        graph.erase_node(node)
    if strided:
        program.graph_module.recompile()


def _is_strided(node: torch.fx.Node) -> bool:
    """
    Whether a node is an `as_strided`. For the in-place form, the result is True only if
    no further node can observe the change.
    """
    if node.op != "call_function":
        return False
    if node.target is not _RESTRIDED:
        return node.target is _STRIDED
    source = node.all_input_nodes[0]
    return source.op == "call_function" and len(source.users) == 1


def _written(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    given: Any = node.args
    source, sizes, strides = given[:3]
    offset: int = (given[3] if len(given) > 3 else 0) or 0
    value: Tensor = source.meta["val"]
    order = _order_in_memory(value)
    if order is None:
        raise DistIRError(
            f"as_strided of {list(value.shape)} takes elements of a tensor that is itself "
            f"a view of another one or repeats its elements; call contiguous() before it"
        )
    shape = [value.shape[d] for d in order]
    rows = shape[0] if shape else 1
    each = prod(shape[1:])
    last = sum((n - 1) * s for n, s in zip(sizes[1:], strides[1:], strict=True))
    by_row = (
        bool(sizes)
        and order[0] == 0
        and (sizes[0], strides[0]) == (rows, each)
        and offset + last < each
    )

    def elements(sizes: Sequence[int], strides: Sequence[int]) -> Tensor:
        """Returns the memory positions of the elements of one row, in order."""
        found = torch.full((1,), offset, dtype=torch.int64)
        for size, stride in zip(sizes, strides, strict=True):
            found = (found.unsqueeze(-1) + torch.arange(size) * stride).reshape(-1)
        return found

    def computed(tensor: Tensor) -> Tensor:
        memory = tensor.permute(order)
        if not by_row:
            picked = memory.reshape(-1).index_select(0, elements(sizes, strides))
            return picked.reshape(sizes)
        memory = memory.reshape(rows, each)
        if not _is_contiguous(sizes[1:], strides[1:], each):
            memory = memory.index_select(1, elements(sizes[1:], strides[1:]))
        return memory.reshape(sizes)

    return insert_traced(graph, node, computed, [source])


def _order_in_memory(value: Tensor) -> list[int] | None:
    """
    Returns the dimensions of a tensor in the order of memory, slowest first. Returns
    None if the tensor does not fill its memory, or if elements share memory.
    """
    order = sorted(range(value.dim()), key=lambda d: (-value.stride(d), d))
    ones = [d for d in order if value.shape[d] == 1]
    order = [d for d in order if value.shape[d] != 1]
    shape = [value.shape[d] for d in order]
    dense = _is_contiguous(shape, [value.stride(d) for d in order], prod(shape))
    if not dense or value.storage_offset():
        return None
    # The first dimension leads where its place says nothing: a batch of one sample.
    leads = [0] if 0 in ones else []
    return [*leads, *order, *(d for d in ones if d != 0)]


def _is_contiguous(sizes: Sequence[int], strides: Sequence[int], count: int) -> bool:
    """Whether a view with `strides` is a contiguous sequence of `count` elements."""
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return step == count
