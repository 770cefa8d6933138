"""Writes functions of tensors into the graphs of exported programs."""

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
    Inserts before a node what a function does with operands, which it is shown without
    values, and returns the node or nodes of its result. `table` has decompositions of
    operations. What is inserted belongs to the module and the line that the node is from.
    """
    values = [operand.meta["val"] for operand in operands]
    # Constants that the function makes have no values either.
    with detect_fake_mode((values, node.meta["val"])) or contextlib.nullcontext():
        own = make_fx(function, decomposition_table=table)(*values).graph
    inputs = [n for n in own.nodes if n.op == "placeholder"]
    with graph.inserting_before(node):
        made = dict(zip(inputs, operands, strict=True))
        result = graph.graph_copy(own, made)  # pyright: ignore[reportArgumentType]
    labels = {name: value for name, value in node.meta.items() if name != "val"}
    for inner in own.nodes:
        if inner.op == "call_function":
            made[inner].meta.update(labels)
    return result
