"""
Rewrites operations whose arguments PyTorch's newer exporter drops or misunderstands
into operations that the exporter writes correctly: losses with smoothed labels or class
weights, averages with a custom divisor, attention that repeats heads or has a boolean
mask, and resizes of images by a factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distir.errors import DistIRError
from distir.frontends.torch.export.graphs import insert_traced

_aten: Any = torch.ops.aten
_Rewrite = Callable[[torch.fx.Graph, torch.fx.Node], Any]
"""
A rewrite of a node. It returns the node whose result replaces that of the node, or None
if the node stays.
"""

_NONE, _MEAN = 0, 1
"""The reductions of losses, with PyTorch's ids; 2 is a sum."""


def write_lost_arguments(program: torch.export.ExportedProgram) -> None:
    """
    Rewrites, in place, the operations whose arguments the exporter would lose. Raises
    DistIRError if an operation cannot be rewritten.
    """
    graph = program.graph
    is_changed = False
    for node in list(graph.nodes):
        rewrite = _REWRITES.get(node.target) if node.op == "call_function" else None
        result = None if rewrite is None else rewrite(graph, node)
        if result is None:
            continue
        is_changed = True
        if result is not node:
            node.replace_all_uses_with(result)
            program.graph_signature.replace_all_uses(node.name, result.name)
    if is_changed:
        graph.eliminate_dead_code()
        program.graph_module.recompile()


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """
    Returns the arguments of a node by name. Omitted arguments have the defaults of the
    schema.
    """
    target: Any = node.target
    schema = target._schema.arguments
    found = {a.name: a.default_value for a in schema}
    found.update(zip((a.name for a in schema), node.args, strict=False))
    return {**found, **node.kwargs}


def _cross_entropy(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """
    Rewrites a cross-entropy with smoothing, class weights, fractions as labels, or a
    single sample. The exporter drops `label_smoothing` and reads all labels as ids of
    classes. Returns None for any other cross-entropy.
    """
    given = _arguments(node)
    logits, target, weight = given["self"], given["target"], given["weight"]
    smoothing = float(given["label_smoothing"])
    reduction = int(given["reduction"])
    is_vector = logits.meta["val"].dim() == 1
    operands = [logits, target, *([] if weight is None else [weight])]
    if target.meta["val"].is_floating_point():

        def of_fractions(x: Tensor, t: Tensor, *weights: Tensor) -> Tensor:
            return _loss_of_fractions(x, t, weights, smoothing, reduction)

        return insert_traced(graph, node, of_fractions, operands)
    if not smoothing and weight is None and not is_vector:
        return None
    ignored = int(given["ignore_index"])
    with graph.inserting_before(node):
        if is_vector:
            logits, target = (
                graph.call_function(_aten.unsqueeze.default, (x, 0))
                for x in (logits, target)
            )
            for new, old in zip((logits, target), operands, strict=False):
                new.meta.update({**node.meta, "val": old.meta["val"].unsqueeze(0)})
        # Split classes are only supported for this operation, without weights.
        plain = graph.call_function(
            _aten.cross_entropy_loss.default, (logits, target, None, _NONE, ignored)
        )
        plain.meta.update(
            {**node.meta, "val": target.meta["val"].to(logits.meta["val"].dtype)}
        )

    def of_classes(x: Tensor, t: Tensor, losses: Tensor, *weights: Tensor) -> Tensor:
        found = _loss_of_classes(x, t, losses, weights, smoothing, ignored, reduction)
        return found.squeeze(0) if is_vector and reduction == _NONE else found

    return insert_traced(
        graph, node, of_classes, [logits, target, plain, *operands[2:]]
    )


def _loss_of_classes(
    x: Tensor,
    target: Tensor,
    losses: Tensor,
    weights: Sequence[Tensor],
    smoothing: float,
    ignored: int,
    reduction: int,
) -> Tensor:
    """
    Returns the loss for labels that are class ids. `losses` are the losses of the
    labels without class weights and smoothing.
    """
    is_counted = target != ignored
    counted = is_counted.to(x.dtype)
    if weights:
        (weight,) = weights
        places = torch.where(is_counted, target, 0)
        own = weight.index_select(0, places.reshape(-1)).reshape(target.shape)
        counted = counted * own
        losses = losses * own
    if smoothing:
        rows = x.log_softmax(1)
        if weights:
            rows = rows * weights[0].reshape(-1, *[1] * (x.dim() - 2))
        of_all = torch.where(is_counted, -rows.sum(1), 0.0)
        losses = losses * (1 - smoothing) + of_all * (smoothing / x.shape[1])
    if reduction == _NONE:
        return losses
    return losses.sum() / counted.sum() if reduction == _MEAN else losses.sum()


def _loss_of_fractions(
    x: Tensor,
    target: Tensor,
    weights: Sequence[Tensor],
    smoothing: float,
    reduction: int,
) -> Tensor:
    """Returns the loss for labels that are fractions, one for each class."""
    dim = min(1, x.dim() - 1)
    if smoothing:
        target = target * (1 - smoothing) + smoothing / x.shape[dim]
    rows = x.log_softmax(dim) * target
    if weights:
        rows = rows * weights[0].reshape(-1, *[1] * (x.dim() - dim - 1))
    losses = -rows.sum(dim)
    if reduction == _NONE:
        return losses
    total = losses.sum()
    return total / max(1, losses.numel()) if reduction == _MEAN else total


def _average(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """
    Rewrites an average with `divisor_override`, which the exporter drops. Returns None
    for an average without this argument. Raises DistIRError if the average also has
    `ceil_mode`.
    """
    given = _arguments(node)
    divisor = given["divisor_override"]
    if divisor is None:
        return None
    if given["ceil_mode"]:
        raise DistIRError(
            "an average over windows with divisor_override and ceil_mode cannot be "
            "imported; pad the input, without ceil_mode, instead"
        )
    kernel: Sequence[int] = given["kernel_size"]
    dims = node.meta["val"].dim() - given["self"].meta["val"].dim() + len(kernel)
    elements = math.prod(kernel) if len(kernel) > 1 else kernel[0] ** dims
    names = ("self", "kernel_size", "stride", "padding")
    with graph.inserting_before(node):
        mean = graph.call_function(
            node.target,  # pyright: ignore[reportArgumentType]
            (*(given[name] for name in names), False, True),
        )
        mean.meta.update(node.meta)

    def scaled(means: Tensor) -> Tensor:
        return means * (elements / divisor)

    return insert_traced(graph, node, scaled, [mean])


def _resized(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """
    Rewrites a resize by factors as a resize to sizes. Returns None if the node stays
    unchanged.

    The exporter writes factors as ONNX's scales. These are rounded to 32 bits before
    sizes are derived from them, and they matter even if corners are aligned. A resize
    to sizes computes the same, except in dimensions whose new size is rounded down;
    these dimensions are resized separately, by factors.
    """
    given = _arguments(node)
    source, factors, align = (
        given[n] for n in ("input", "scale_factors", "align_corners")
    )
    if factors is None:
        return None
    before, after = _sizes(source), _sizes(node)
    is_exact = [
        align or math.isclose(n * factor, m)
        for n, factor, m in zip(before, factors, after, strict=True)
    ]
    if not any(is_exact):
        return None
    exact = [m if e else n for n, m, e in zip(before, after, is_exact, strict=True)]
    with graph.inserting_before(node):
        first = graph.call_function(
            node.target,  # pyright: ignore[reportArgumentType]
            (source, exact, align, None),
        )
        shape = (*source.meta["val"].shape[:2], *exact)
        first.meta.update({**node.meta, "val": source.meta["val"].new_empty(shape)})
    if all(is_exact):
        return first
    left = [1.0 if e else f for f, e in zip(factors, is_exact, strict=True)]
    node.args, node.kwargs = (first, None, align, left), {}
    return node


def _sizes(node: torch.fx.Node) -> list[int]:
    """
    Returns the spatial sizes of images, without the dimensions of samples and channels.
    """
    return list(node.meta["val"].shape[2:])


def _nearest(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """
    Rewrites a nearest-neighbour resize by factors that are not whole as a selection of
    elements by index, because ONNX's Resize rounds positions differently. Returns None
    for any other resize.
    """
    given = _arguments(node)
    factors = given["scale_factors"]
    if factors is None or all(float(factor).is_integer() for factor in factors):
        return None
    shift = 0.5 if "exact" in str(node.target) else 0.0
    sizes = _sizes(node)

    def taken(x: Tensor) -> Tensor:
        for dim, (factor, size) in enumerate(zip(factors, sizes, strict=True), 2):
            step = float(np.float32(1 / factor))  # as PyTorch does
            places = (torch.arange(size, dtype=torch.float32) + shift) * step
            last = x.shape[dim] - 1
            x = x.index_select(dim, places.floor().long().clamp(max=last))
        return x

    return insert_traced(graph, node, taken, [given["input"]])


def _embedding(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """
    Raises DistIRError for an embedding with `scale_grad_by_freq`, which the exporter
    drops. Returns None for any other embedding.
    """
    if _arguments(node)["scale_grad_by_freq"]:
        raise DistIRError(
            "an embedding with scale_grad_by_freq has gradients that cannot be imported; "
            "set it to False"
        )
    return None


_MOST_OF_MASK = 64
"""The most operations of which a mask is looked through."""


def _attention(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """
    Rewrites attention that the exporter writes wrongly. Returns None for any other
    attention. The mistakes of the exporter are:

    - for repeated heads (`enable_gqa`), it writes invalid axes;
    - for a mask of Booleans or with minus infinity, it gives a query that sees no key the
      mean of the values, or NaN, instead of zeros;
    - it rounds a scale in f64 to 32 bits.
    """
    given = _arguments(node)
    is_scaled = given["scale"] is not None and (
        given["query"].meta["val"].dtype == torch.float64
    )
    if is_scaled:
        _scale_queries(graph, node, given)
    mask: torch.fx.Node | None = given["attn_mask"]
    is_grouped = given["enable_gqa"] and given["query"].meta["val"].dim() == 4
    if is_grouped:
        _repeat_heads(graph, node, given)
    is_boolean = mask is not None and mask.meta["val"].dtype == torch.bool
    if mask is None or not (is_boolean or _has_infinity(mask)):
        return node if is_grouped or is_scaled else None
    if not is_boolean:

        def finite(mask: Tensor) -> Tensor:  # else gradients would have NaN
            return torch.where((mask > -math.inf).any(-1, keepdim=True), mask, 0.0)

        given["attn_mask"] = insert_traced(graph, node, finite, [mask])
    with graph.inserting_before(node):
        plain = graph.node_copy(node)
    if not is_boolean:
        plain.replace_input_with(mask, given["attn_mask"])

    def zeroed(y: Tensor, mask: Tensor) -> Tensor:
        seen = mask if is_boolean else mask > -math.inf
        return torch.where(seen.any(-1, keepdim=True), y, 0.0)

    return insert_traced(graph, node, zeroed, [plain, mask])


def _has_infinity(mask: torch.fx.Node) -> bool:
    """
    Whether minus infinity, which hides keys, enters the computation of a float mask.
    """
    seen, waiting = {mask}, [mask]
    while waiting:
        node = waiting.pop()
        if any(x == -math.inf for x in node.args if isinstance(x, float)):
            return True
        new = [other for other in node.all_input_nodes if other not in seen]
        seen.update(new)
        waiting += [other for other in new if len(seen) < _MOST_OF_MASK]
    return False


def _scale_queries(
    graph: torch.fx.Graph, node: torch.fx.Node, given: dict[str, Any]
) -> None:
    """
    Multiplies the queries of the attention `node` by a factor, so that attention with
    the default scale computes the same as attention with the node's scale. `given`
    holds the node's arguments and is updated.
    """
    factor = given["scale"] * math.sqrt(given["query"].meta["val"].shape[-1])

    def scaled(x: Tensor) -> Tensor:
        return x * factor

    if factor != 1:
        given["query"] = insert_traced(graph, node, scaled, [given["query"]])
    given["scale"] = None
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    node.args = tuple(given[name] for name in names)
    node.kwargs = {"enable_gqa": given["enable_gqa"]}


def _repeat_heads(
    graph: torch.fx.Graph, node: torch.fx.Node, given: dict[str, Any]
) -> None:
    """
    Repeats the keys and values before the attention `node`, so that each query head has
    a key head and a value head of its own. `given` holds the node's arguments.
    """
    query, heads = given["query"], [given["key"], given["value"]]

    def repeated(x: Tensor) -> Tensor:
        batch, count, length, size = x.shape
        times = query.meta["val"].shape[1] // count
        wide = x[:, :, None].expand(batch, count, times, length, size)
        return wide.reshape(batch, count * times, length, size)

    options = ("attn_mask", "dropout_p", "is_causal")
    key, value = (insert_traced(graph, node, repeated, [x]) for x in heads)
    node.args = (query, key, value, *(given[name] for name in options))
    node.kwargs = {"scale": given["scale"]}


def _scattered(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """
    Raises DistIRError for a scatter of means, which the exporter writes wrongly.
    Returns None for any other scatter.
    """
    if _arguments(node)["reduce"] == "mean":
        raise DistIRError(
            "scatter_reduce with means cannot be imported; scatter the sums and how many "
            "there are of each, and divide"
        )
    return None


_LINEAR = (
    _aten.upsample_linear1d.vec,
    _aten.upsample_bilinear2d.vec,
    _aten.upsample_trilinear3d.vec,
    _aten.upsample_bicubic2d.vec,
    _aten._upsample_bilinear2d_aa.vec,
    _aten._upsample_bicubic2d_aa.vec,
)
_NEAREST = (
    _aten.upsample_nearest1d.vec,
    _aten.upsample_nearest2d.vec,
    _aten.upsample_nearest3d.vec,
    _aten._upsample_nearest_exact1d.vec,
    _aten._upsample_nearest_exact2d.vec,
    _aten._upsample_nearest_exact3d.vec,
)
_REWRITES: dict[Any, _Rewrite] = {
    _aten.cross_entropy_loss.default: _cross_entropy,
    _aten.avg_pool2d.default: _average,
    _aten.avg_pool3d.default: _average,
    _aten.embedding.default: _embedding,
    _aten.scaled_dot_product_attention.default: _attention,
    _aten.scatter_reduce.two: _scattered,
    **dict.fromkeys(_LINEAR, _resized),
    **dict.fromkeys(_NEAREST, _nearest),
}
