"""
Writes `masked_scatter` with shapes that are known: the n-th place of a mask takes the n-th
element of a source. PyTorch's exporter looks the places up, of which there are as many as
the mask's values say.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from distir.frontends.torch_graphs import insert_traced

_SCATTER: Any = torch.ops.aten.masked_scatter.default
_EXPAND: Any = torch.ops.aten.expand.default
_SAME: tuple[Any, ...] = (
    torch.ops.aten.to.device,
    torch.ops.aten.to.dtype,
    torch.ops.aten.to.dtype_layout,
)


def write_masked_scatters(program: torch.export.ExportedProgram) -> None:
    """
    Replaces what scatters a source to the places of a mask, in place. The models of Hugging
    Face put patches of images among words so; the source has to have an element for each
    place, which PyTorch checks when it runs and the program does not.
    """
    graph = program.graph
    found = [n for n in graph.nodes if n.op == "call_function" and n.target is _SCATTER]
    if not found:
        return  # compiling a program again takes long
    for node in found:
        x, mask, source = node.args[:3]
        row = _mask_of_rows(mask, x.meta["val"].shape, source.meta["val"].numel())
        operands = [x, mask if row is None else row, source]
        function = _scattered if row is None else _scattered_rows
        result: torch.fx.Node = insert_traced(graph, node, function, operands)
        node.replace_all_uses_with(result)
        program.graph_signature.replace_all_uses(node.name, result.name)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _mask_of_rows(
    mask: torch.fx.Node, shape: torch.Size, elements: int
) -> torch.fx.Node | None:
    """
    Returns the mask of rows, whose last dimension is 1, that was expanded to this one; None
    if it was not, or if the source does not consist of rows.
    """
    while mask.target in _SAME:
        (mask,) = mask.all_input_nodes
    if mask.target is not _EXPAND:
        return None
    (row,) = mask.all_input_nodes
    rows = (*shape[:-1], 1)
    whole = row.meta["val"].shape == rows and row.meta["val"].dtype == torch.bool
    return row if whole and elements % shape[-1] == 0 else None


def _scattered(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Returns `x` with the elements of the source in the places of a mask."""
    x, mask = torch.broadcast_tensors(x, mask)
    return _scattered_rows(x[..., None], mask[..., None], source)[..., 0]


def _scattered_rows(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """
    Returns `x` with the rows of the source in the places of a mask, whose last dimension is
    1.
    """
    rows = source.reshape(-1, x.shape[-1])
    order = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    taken = rows[order.clamp(0, rows.shape[0] - 1)]
    return torch.where(mask, taken.reshape(x.shape), x)
