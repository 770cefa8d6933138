"""Inserts traced functions of tensors into the graphs of exported programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx


def insert_traced(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    function: Callable[..., Any],
    operands: Sequence[torch.fx.Node],
    table: Mapping[Any, Any] | None = None,
) -> Any:
    """
    Traces `function` on `operands` without their values, and inserts the traced
    operations before `node`. Returns the node or nodes of the function's result.

    `table` holds decompositions of operations. New operations belong to the same module
    and line as `node`.
    """
    values = [operand.meta["val"] for operand in operands]
    # Constants that the function makes have no values either.
    with detect_fake_mode((values, node.meta["val"])) or contextlib.nullcontext():
        traced = make_fx(function, decomposition_table=table)(*values)
        if any(_writes(n) for n in traced.graph.nodes):
            # A decomposition may write to tensors of its own; programs compute new ones.
            traced = make_fx(torch.func.functionalize(traced))(*values)
            _remove_copies(traced.graph)
        own = traced.graph
    inputs = [n for n in own.nodes if n.op == "placeholder"]
    with graph.inserting_before(node):
        made = dict(zip(inputs, operands, strict=True))
        result = graph.graph_copy(own, made)  # pyright: ignore[reportArgumentType]
    labels = {name: value for name, value in node.meta.items() if name != "val"}
    for inner in own.nodes:
        if inner.op == "call_function":
            made[inner].meta.update(labels)
    return result


def _writes(node: torch.fx.Node) -> bool:
    """Whether a node writes to a tensor in place."""
    schema: Any = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _remove_copies(graph: torch.fx.Graph) -> None:
    """
    Removes copies that only replace the old values of a tensor by new values of the
    same shape and type. PyTorch's functionalization makes such copies for in-place
    writes.
    """
    for node in graph.find_nodes(
        op="call_function", target=torch.ops.aten.copy.default
    ):
        old, new = (argument.meta["val"] for argument in node.args)
        if (old.shape, old.dtype) == (new.shape, new.dtype):
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
