"""
Writes `nn.EmbeddingBag` as look-ups and sums. PyTorch's exporter writes a loop over
bags, which DistIR cannot import.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from distir.frontends.torch.export.graphs import insert_traced

_BAGS: tuple[Any, ...] = (
    torch.ops.aten.embedding_bag.padding_idx,
    torch.ops.aten.embedding_bag.default,
    torch.ops.aten._embedding_bag.default,
    torch.ops.aten._embedding_bag_forward_only.default,
)
_SUM, _MEAN, _MAX = 0, 1, 2
"""The modes of an EmbeddingBag, with PyTorch's ids."""


def write_bags(program: torch.export.ExportedProgram) -> None:
    """
    Replaces the ops that compute sums, means and maxima over bags of rows of a table,
    in place.

    Two kinds of bags stay unchanged: maxima over bags of different lengths or with
    padding, and bags whose gradients are divided by the frequency of a row.
    """
    graph = program.graph
    bags = [n for n in graph.nodes if n.op == "call_function" and n.target in _BAGS]
    if not bags:
        return  # compiling a program again takes long
    for node in bags:
        _write(program, node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _write(program: torch.export.ExportedProgram, node: torch.fx.Node) -> None:
    """
    Replaces the first result of `node`, the op of an EmbeddingBag. Leaves the node
    unchanged if its other results, which PyTorch's backward pass reads, are used.
    """
    used = [user for user in node.users if user.users]
    if any(u.target is not operator.getitem or u.args[1] != 0 for u in used):
        return
    given = _arguments(node)
    weight, indices, offsets = (given[n] for n in ("weight", "indices", "offsets"))
    mode, padding = given["mode"], given["padding_idx"]
    padding = None if padding is None or padding < 0 else int(padding)
    length = _equal_length(offsets, indices)
    if given["scale_grad_by_freq"]:
        return
    if mode == _MAX and (length is None or padding is not None):
        return
    operands = [weight, indices]
    if length is None:
        operands.append(offsets)
    else:
        operands[1] = _before_flattening(indices, length)
    weights = given["per_sample_weights"]
    if weights is not None:
        operands.append(weights)
    last = bool(given["include_last_offset"])

    def computed(table: Tensor, words: Tensor, *more: Tensor) -> Tensor:
        scales = more[-1] if weights is not None else None
        if length is not None:
            return _equal_bags(table, words.reshape(-1, length), scales, mode, padding)
        starts = more[0][:-1] if last else more[0]
        return _bags(table, words, starts, scales, mode, padding)

    result: torch.fx.Node = insert_traced(program.graph, node, computed, operands)
    for user in used:
        user.replace_all_uses_with(result)
        # The signature tells results by the names of the ops that compute them.
        program.graph_signature.replace_all_uses(user.name, result.name)


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """
    Returns the arguments of an op by name. Omitted arguments have the defaults of the
    op's schema.
    """
    target: Any = node.target
    found: dict[str, Any] = {"padding_idx": None}
    for i, argument in enumerate(target._schema.arguments):
        if i < len(node.args):
            found[argument.name] = node.args[i]
        else:
            found[argument.name] = node.kwargs.get(
                argument.name, argument.default_value
            )
    return found


def _equal_length(offsets: torch.fx.Node, indices: torch.fx.Node) -> int | None:
    """
    Returns the length n of all bags if the offsets are 0, n, 2n, ..., as for a table of
    indices. Returns None if the offsets differ from this form.
    """
    if offsets.target is not torch.ops.aten.arange.start_step:
        return None
    start, end, step = (*offsets.args, 1)[:3]
    (count,) = indices.meta["val"].shape
    if start != 0 or end != count or not isinstance(step, int) or count % step:
        return None
    return step


def _before_flattening(indices: torch.fx.Node, length: int) -> torch.fx.Node:
    """
    Returns the table of indices from which `indices` was flattened, so that the rows of
    the table stay separate. Returns `indices` itself if there is no such table with
    rows of `length` indices.
    """
    flattened = (torch.ops.aten.reshape.default, torch.ops.aten.view.default)
    if indices.target not in flattened:
        return indices
    (source,) = indices.all_input_nodes
    shape = tuple(source.meta["val"].shape)
    return source if len(shape) == 2 and shape[1] == length else indices


def _equal_bags(
    table: Tensor,
    words: Tensor,
    scales: Tensor | None,
    mode: int,
    padding: int | None,
) -> Tensor:
    """
    Returns the sum, mean or maximum (`mode`) over bags of equal length. `words` [n,
    length] are indices of rows in `table`. Leaves out rows with the index `padding`.
    """
    rows = torch.ops.aten.embedding.default(table, words)
    if mode == _MAX:
        return rows.amax(1)
    if scales is not None:
        rows = rows * scales.reshape(words.shape).unsqueeze(-1)
    if padding is not None:
        kept = (words != padding).to(table.dtype)
        rows = rows * kept.unsqueeze(-1)
        if mode == _MEAN:
            return rows.sum(1) / kept.sum(1, keepdim=True).clamp(min=1.0)
    return rows.mean(1) if mode == _MEAN else rows.sum(1)


def _bags(
    table: Tensor,
    words: Tensor,
    starts: Tensor,
    scales: Tensor | None,
    mode: int,
    padding: int | None,
) -> Tensor:
    """
    Returns the sums or means over bags of `words` [n]. `starts` are the positions at
    which bags begin. The result is computed as a product with the matrix [bags, n] that
    is one where a word is in a bag.
    """
    rows = torch.ops.aten.embedding.default(table, words)
    if scales is not None:
        rows = rows * scales.unsqueeze(-1)
    places = torch.arange(words.shape[0], device=words.device)
    # The bag of a word is the last one that begins at it or before it.
    own = (starts.unsqueeze(0) <= places.unsqueeze(1)).to(torch.int64).sum(1) - 1
    bags = torch.arange(starts.shape[0], device=words.device)
    member = (bags.unsqueeze(1) == own.unsqueeze(0)).to(table.dtype)
    if padding is not None:
        member = member * (words != padding).to(table.dtype).unsqueeze(0)
    found = member @ rows
    if mode == _MEAN:
        found = found / member.sum(1, keepdim=True).clamp(min=1.0)
    return found
