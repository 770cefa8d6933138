"""
Writes `as_strided` in terms of elements. It speaks of positions in memory, which programs
of ONNX do not have; models use it for overlapping windows, and PyTorch for pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from distir.errors import DistIRError
from distir.frontends.torch.export.graphs import insert_traced

_STRIDED: Any = torch.ops.aten.as_strided.default
_RESTRIDED: Any = torch.ops.aten.as_strided_.default
"""In place. PyTorch's pooling does so to means that it has just made."""


def write_strides(program: torch.export.ExportedProgram) -> None:
    """
    Replaces every `as_strided` by the elements that it takes, in place: those of each row
    of the first dimension by themselves, if they come from the same row, so that batches
    and heads stay apart. Raises DistIRError for tensors that are no whole piece of memory.
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
    """Whether a node takes elements by their places in memory, and nothing sees it change."""
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
        """The positions of the elements of one row, in order."""
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
    Returns the dimensions as they lie in memory, slowest first; None for a tensor that is
    not all of its memory, or has an element in several places.
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
    """Whether a view with these strides is a row of so many elements, one after another."""
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return step == count
