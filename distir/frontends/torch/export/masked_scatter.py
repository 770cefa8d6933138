"""
Writes `masked_scatter` with known shapes: the n-th true position of a mask takes the
n-th element of a source. PyTorch's exporter instead searches the positions, so that a
shape depends on the mask's values.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from distir.errors import DistIRError
from distir.frontends.torch.export.graphs import insert_traced

_aten: Any = torch.ops.aten
_SCATTER: Any = _aten.masked_scatter.default
_EXPANSIONS: tuple[Any, ...] = (_aten.expand.default, _aten.expand_as.default)
_SAME: tuple[Any, ...] = (
    _aten.to.device,
    _aten.to.dtype,
    _aten.to.dtype_layout,
)


def write_masked_scatters(
    program: torch.export.ExportedProgram, equal_features: bool = False
) -> None:
    """
    Replaces every `masked_scatter` in a program, in place. Hugging Face's models use
    `masked_scatter` to put patches of images among words. The source must have an
    element for each true position of the mask; PyTorch checks this at run time, but the
    program does not.

    With `equal_features`, each sample (an element of the first dimension) takes an
    equal part of the source. The results of a sample whose mask has more or fewer true
    positions become NaN. Raises DistIRError, with `equal_features`, if the source has
    no equal parts or the program has no `masked_scatter`.
    """
    graph = program.graph
    found = [n for n in graph.nodes if n.op == "call_function" and n.target is _SCATTER]
    if not found:
        if equal_features:
            raise DistIRError(
                "equal_features is for modules that scatter features to the places of a "
                "mask with masked_scatter; this one does not, so leave it out"
            )
        return  # compiling a program again takes long
    for node in found:
        _join_parts(graph, node.args[2])
        x, mask, source = node.args[:3]
        shape, elements = x.meta["val"].shape, source.meta["val"].numel()
        row = _mask_of_rows(mask, shape, elements)
        if equal_features:
            _check_parts(shape, elements if row is None else elements // shape[-1])

        def scattered(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
            return _scattered(x, mask, source, equal_features)

        def scattered_rows(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
            return _scattered_rows(x, mask, source, equal_features)

        operands = [x, mask if row is None else row, source]
        function = scattered if row is None else scattered_rows
        result: torch.fx.Node = insert_traced(graph, node, function, operands)
        node.replace_all_uses_with(result)
        program.graph_signature.replace_all_uses(node.name, result.name)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _check_parts(shape: torch.Size, rows: int) -> None:
    """
    Raises DistIRError unless `rows` rows can be divided equally among the samples.
    """
    if len(shape) < 2 or rows % shape[0]:
        raise DistIRError(
            f"equal_features says that each sample has as many features, but "
            f"masked_scatter takes {rows} for {shape[0] if shape else 1} samples; leave it "
            f"out, or give as many images to each sample"
        )


def _join_parts(graph: torch.fx.Graph, source: torch.fx.Node) -> None:
    """
    Replaces the concatenation of all samples of a tensor, in order, by the flattened
    tensor. If a batch was split into samples and concatenated again, the samples thus
    stay separate.
    """
    while source.target in _SAME:
        (source, *_) = source.all_input_nodes
    if source.target is not _aten.cat.default or source.kwargs.get("dim"):
        return
    parts: Any
    parts, dim = (*source.args, 0)[:2]
    taken = parts[0].args[0] if parts[0].target is operator.getitem else None
    if dim != 0 or taken is None or taken.target is not _aten.unbind.int:
        return
    whole: Any
    whole, along = (*taken.args, 0)[:2]
    places = [
        p.args[1] if p.target is operator.getitem and p.args[0] is taken else None
        for p in parts
    ]
    if along != 0 or places != [*range(whole.meta["val"].shape[0])]:
        return
    if whole.meta["val"].dim() < 2:
        return

    def joined(x: Tensor) -> Tensor:
        return x.flatten(0, 1)

    source.replace_all_uses_with(insert_traced(graph, source, joined, [whole]))


def _mask_of_rows(
    mask: torch.fx.Node, shape: torch.Size, elements: int
) -> torch.fx.Node | None:
    """
    Returns the Boolean mask of rows, with a last dimension of 1, if `mask` is such a
    mask or is expanded from one. Returns None for any other mask. Also returns None if
    the source does not consist of rows; `elements` is the number of its elements.
    """
    rows = (*shape[:-1], 1)
    while mask.target in _SAME or mask.target in _EXPANSIONS:
        if mask.target in _EXPANSIONS and _is_rows(mask, rows):
            break
        mask = mask.all_input_nodes[0]
    return mask if _is_rows(mask, rows) and elements % shape[-1] == 0 else None


def _is_rows(mask: torch.fx.Node, rows: tuple[int, ...]) -> bool:
    """Whether `mask` is boolean and has the shape `rows`."""
    value = mask.meta["val"]
    return value.shape == rows and value.dtype == torch.bool


def _scattered(x: Tensor, mask: Tensor, source: Tensor, equal: bool) -> Tensor:
    """
    Returns `x` with the elements of `source` at the true positions of `mask`. With
    `equal`, each sample takes an equal part of the source.
    """
    x, mask = torch.broadcast_tensors(x, mask)
    return _scattered_rows(x[..., None], mask[..., None], source, equal)[..., 0]


def _scattered_rows(x: Tensor, mask: Tensor, source: Tensor, equal: bool) -> Tensor:
    """
    Returns `x` with the rows of `source` at the true positions of `mask`, whose last
    dimension is 1. With `equal`, each sample takes an equal part of the source; if a
    sample has more or fewer true positions than rows, NaN is written to these
    positions.
    """
    if not equal:
        taken, _ = _rows(mask.reshape(1, -1), source.reshape(1, -1, x.shape[-1]))
        return torch.where(mask, taken.reshape(x.shape), x)
    samples = x.shape[0]
    parts = source.reshape(samples, -1, x.shape[-1])
    taken, fits = _rows(mask.reshape(samples, -1), parts)
    taken = torch.where(fits[..., None], taken, math.nan)
    return torch.where(mask, taken.reshape(x.shape), x)


def _rows(mask: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """
    Returns two tensors. The first has a row of `source` [samples, rows, features] for
    each position of `mask` [samples, positions]: the row that belongs to the position
    if the mask is true there. The second, [samples, 1], tells whether a sample has as
    many true positions as rows.
    """
    count = mask.to(torch.int64).cumsum(1)
    order = (count - 1).clamp(0, source.shape[1] - 1)
    taken: Tensor = torch.onnx.ops.symbolic(
        "::GatherND",
        [source, order[..., None]],
        {"batch_dims": 1},
        dtype=source.dtype,
        shape=(*order.shape, source.shape[2]),
        version=None,
    )
    return taken, count[:, -1:] == source.shape[1]
