"""Conversions of `gather` and `scatter`: look-ups at indices, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import AnyFloat, IntegerAttr, i1, i64
from xdsl.ir import SSAValue

from distir.dialects.tensors import tensor_of
from distir.dialects.train_ops.indexing import GatherGradOp, ScatterSumOp
from distir.frontends.stablehlo.ops.indexing import clamped
from distir.frontends.stablehlo.registry import HloCall, UnsupportedError, converts
from distir.frontends.stablehlo.tensors import LazyTensor, Shape


@dataclass(frozen=True)
class LookUp:
    """
    The roles of the dimensions of a table, of its indices and of the rows, in the same
    form for `gather` and `scatter`. An index is a vector of numbers, one for each
    indexed dimension of the table.

    - `table`, `indices`, `rows`: the shapes of the table, of the indices, and of the
      rows that are looked up or written;
    - `window`: the dimensions of the rows that run along the table;
    - `collapsed`: the dimensions of the table that rows lack, because an index selects
      one position there;
    - `indexed`: the dimensions of the table to which the numbers of an index refer;
    - `table_batch`, `index_batch`: the batch dimensions of the table and of the
      indices, in pairs;
    - `vector`: the dimension of the indices that holds the numbers of one index;
    - `sizes`: the size of a row along each dimension of the table.
    """

    table: Shape
    indices: Shape
    rows: Shape
    window: Sequence[int]
    collapsed: Sequence[int]
    indexed: Sequence[int]
    table_batch: Sequence[int]
    index_batch: Sequence[int]
    vector: int
    sizes: Sequence[int]

    @property
    def places(self) -> list[int]:
        """
        The dimensions of the tensor of indices, except for the dimension that holds the
        numbers of one index. Each position along these dimensions, called a place, has
        one index.
        """
        return [dim for dim in range(len(self.indices)) if dim != self.vector]

    @property
    def axis(self) -> int | None:
        """
        The only indexed dimension of the table, if rows have size 1 there and are whole
        in all other dimensions; otherwise None.
        """
        whole = all(
            size == self.table[dim] or dim in (*self.indexed, *self.table_batch)
            for dim, size in enumerate(self.sizes)
        )
        single = list(self.collapsed) == list(self.indexed) and len(self.indexed) == 1
        return self.indexed[0] if whole and single else None

    @property
    def along_all(self) -> bool:
        """
        Whether each index looks up one element along one dimension, and every other
        dimension of the table is a batch dimension.
        """
        others = [dim for dim in range(len(self.table)) if dim != self.axis]
        return (
            self.axis is not None
            and sorted(self.table_batch) == others
            and not self.window
        )


def _gather_look_up(call: HloCall) -> LookUp:
    found = call.numbers("dimension_numbers")
    table, indices = (operand.shape for operand in call.operands)
    return LookUp(
        table,
        indices,
        call.shape(),
        found.get("offset_dims", []),
        found.get("collapsed_slice_dims", []),
        found.get("start_index_map", []),
        found.get("operand_batching_dims", []),
        found.get("start_indices_batching_dims", []),
        found.get("index_vector_dim", [0])[0],
        call.integers("slice_sizes"),
    )


def _scatter_look_up(call: HloCall) -> LookUp:
    found = call.numbers("scatter_dimension_numbers")
    table, indices, rows = (operand.shape for operand in call.operands)
    window = found.get("update_window_dims", [])
    inserted = found.get("inserted_window_dims", [])
    batch = found.get("input_batching_dims", [])
    sizes = iter([rows[dim] for dim in window])
    return LookUp(
        table,
        indices,
        rows,
        window,
        inserted,
        found.get("scatter_dims_to_operand_dims", []),
        batch,
        found.get("scatter_indices_batching_dims", []),
        found.get("index_vector_dim", [0])[0],
        [1 if dim in (*inserted, *batch) else next(sizes) for dim in range(len(table))],
    )


@dataclass(frozen=True)
class Indices:
    """
    Indices clamped to the size of the table. `values` has a tensor of shape `places`
    for each indexed dimension. `inside` is true where the index was in range; it is
    None if this is not needed.
    """

    values: Sequence[SSAValue]
    inside: SSAValue | None


def _indices(call: HloCall, found: LookUp, with_inside: bool) -> Indices:
    """
    Returns the indices clamped to the size of the table. `inside` is computed only with
    `with_inside`.
    """
    build, operand = call.build, call.operands[1]
    places = [found.indices[dim] for dim in found.places]
    values: list[SSAValue] = []
    inside: SSAValue | None = None
    for number, dim in enumerate(found.indexed):
        value = build.whole(operand)
        if found.vector < len(found.indices):
            starts, limits = [0] * len(found.indices), list(found.indices)
            starts[found.vector], limits[found.vector] = number, number + 1
            value = build.reshape(build.slice(value, starts, limits), places)
        highest = found.table[dim] - found.sizes[dim]
        moved = clamped(call, value, highest)
        values.append(moved)
        if with_inside:
            same = build.op("Equal", [value, moved], places, i1)
            inside = (
                same if inside is None else build.op("And", [inside, same], places, i1)
            )
    return Indices(values, inside)


@converts("stablehlo.gather")
def _gather(call: HloCall) -> LazyTensor:
    found, build = _gather_look_up(call), call.build
    table = build.whole(call.operands[0])
    if found.along_all:
        return _gather_along(call, found, table)
    if found.axis is not None and not found.table_batch:
        axis = found.axis
        [index] = _indices(call, found, False).values
        places = [found.indices[dim] for dim in found.places]
        shape = [*found.table[:axis], *places, *found.table[axis + 1 :]]
        value = build.op("Gather", [table, index], shape, call.element(), axis=axis)
        return LazyTensor.of(build.transpose(value, _row_order(found, axis)))
    value = _gather_tuples(call, found, table)
    return LazyTensor.of(value)


def _row_order(found: LookUp, axis: int) -> list[int]:
    """
    Returns, for each dimension of the rows, its dimension in [...table before `axis`,
    ...places, ...table after `axis`].
    """
    count = len(found.places)
    window = [*range(axis), *range(axis + count, count + len(found.table) - 1)]
    windows, places = iter(window), iter(range(axis, axis + count))
    return [
        next(windows) if dim in found.window else next(places)
        for dim in range(len(found.rows))
    ]


def _along_order(found: LookUp, axis: int) -> tuple[list[int], list[int]]:
    """
    Returns two lists for look-ups of single elements along `axis`. The first list has
    for each dimension of the table its dimension among the places (-1 for `axis`). The
    second list has the dimensions of the places that belong to no dimension of the
    table.
    """
    partner = dict(zip(found.table_batch, found.index_batch, strict=True))
    place = {dim: i for i, dim in enumerate(found.places)}
    order = [
        place[partner[dim]] if dim != axis else -1 for dim in range(len(found.table))
    ]
    return order, [i for i in range(len(place)) if i not in order]


def _aligned_places(
    call: HloCall, found: LookUp, value: SSAValue, axis: int
) -> SSAValue:
    """
    Reorders `value` from the shape of the places to the dimensions of the table, and
    returns the result. Places that belong to no dimension of the table are merged into
    `axis`.
    """
    order, free = _along_order(found, axis)
    moved = [*[d for d in order[:axis]], *free, *[d for d in order[axis + 1 :]]]
    value = call.build.transpose(value, moved)
    sizes = LazyTensor.of(value).shape
    after = axis + len(free)
    merged = int(np.prod(sizes[axis:after], dtype=np.int64))
    return call.build.reshape(value, (*sizes[:axis], merged, *sizes[after:]))


def _gather_along(call: HloCall, found: LookUp, table: SSAValue) -> LazyTensor:
    """Converts a look-up such as `jnp.take_along_axis` to GatherElements."""
    axis, build = found.axis, call.build
    assert axis is not None
    [index] = _indices(call, found, False).values
    index = _aligned_places(call, found, index, axis)
    shape = LazyTensor.of(index).shape
    value = build.op("GatherElements", [table, index], shape, call.element(), axis=axis)
    return LazyTensor.of(_places_again(call, found, value, axis))


def _places_again(call: HloCall, found: LookUp, value: SSAValue, axis: int) -> SSAValue:
    """
    Reorders `value` from the dimensions of the table to the shape of the places, and
    returns the result. This is the inverse of `_aligned_places`.
    """
    order, free = _along_order(found, axis)
    sizes = [found.indices[dim] for dim in found.places]
    moved = [*order[:axis], *free, *order[axis + 1 :]]
    value = call.build.reshape(value, [sizes[dim] for dim in moved])
    return call.build.transpose(value, [moved.index(dim) for dim in range(len(moved))])


def _tuple_form(found: LookUp) -> tuple[list[int], list[int]]:
    """
    Returns, for a look-up by tuples of indices, the order of the table's dimensions
    (batch, then indexed, then all others). Also returns, for each dimension of the
    rows, its dimension in [...batch, ...places, ...others] (-1 for an indexed dimension
    of size 1). Raises UnsupportedError if a row takes only a part of a dimension that
    is not indexed, or several elements of an indexed dimension.
    """
    indexed = list(found.indexed)
    whole = all(
        size == found.table[dim] or dim in (*indexed, *found.table_batch)
        for dim, size in enumerate(found.sizes)
    )
    single = all(found.sizes[dim] == 1 for dim in indexed)
    if not whole or not single:
        raise UnsupportedError(
            "it takes parts of several elements at places that are computed"
        )
    batch = list(found.table_batch)
    others = [dim for dim in range(len(found.table)) if dim not in (*indexed, *batch)]
    # Rows keep indexed dimensions that are not collapsed, with the size 1.
    kept = [dim for dim in range(len(found.table)) if dim not in found.collapsed]
    kept = [dim for dim in kept if dim not in batch]
    place = {dim: i for i, dim in enumerate(found.places)}
    batch_places = [place[dim] for dim in found.index_batch]
    own_places = [i for i in range(len(place)) if i not in batch_places]
    source: dict[int, int] = {}
    for i, dim in enumerate([*batch_places, *own_places]):
        source[dim] = i
    first = len(place)
    order: list[int] = []
    windows, places = iter(kept), iter(range(len(place)))
    for dim in range(len(found.rows)):
        if dim in found.window:
            own = next(windows)
            order.append(first + others.index(own) if own in others else -1)
        else:
            order.append(source[next(places)])
    return [*batch, *indexed, *others], order


def _tuples(call: HloCall, found: LookUp, indices: Indices) -> SSAValue:
    """
    Returns the indices as tuples of numbers, one number for each indexed dimension of
    the table. The shape is [...batch, ...remaining places, numbers].
    """
    build = call.build
    place = {dim: i for i, dim in enumerate(found.places)}
    batch = [place[dim] for dim in found.index_batch]
    order = [*batch, *[i for i in range(len(place)) if i not in batch]]
    parts: list[SSAValue] = []
    for value in indices.values:
        value = build.cast(build.transpose(value, order), i64)
        parts.append(build.reshape(value, (*LazyTensor.of(value).shape, 1)))
    return build.concatenated(parts, len(order))


def _gather_tuples(call: HloCall, found: LookUp, table: SSAValue) -> SSAValue:
    """Converts a look-up by tuples of indices to GatherND, and returns the rows."""
    build = call.build
    table_order, order = _tuple_form(found)
    tuples = _tuples(call, found, _indices(call, found, False))
    table = build.transpose(table, table_order)
    batch = len(found.table_batch)
    places = LazyTensor.of(tuples).shape[:-1]
    rest = LazyTensor.of(table).shape[batch + len(found.indexed) :]
    value = build.op(
        "GatherND", [table, tuples], (*places, *rest), call.element(), batch_dims=batch
    )
    value = build.transpose(value, [dim for dim in order if dim >= 0])
    return build.reshape(value, found.rows)


SCATTER_REDUCTIONS = {
    "": "none",
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
}
"""The attribute `reduction` of ScatterND, by the op that combines two elements."""


@converts("stablehlo.scatter")
def _scatter(call: HloCall) -> Sequence[LazyTensor]:
    if len(call.operands) != 3:
        raise UnsupportedError("it scatters into several tensors at once")
    body = [call.converter.name_of(op) for op in call.body()]
    found = _scatter_look_up(call)
    if body == ["stablehlo.add"] and isinstance(call.element(), AnyFloat):
        return [_scatter_sum(call, found)]
    reduction = SCATTER_REDUCTIONS.get(" ".join(body))
    if reduction is None:
        raise UnsupportedError(
            f"it combines elements by {', '.join(body)}; sums, products, minima, maxima "
            f"and replacing are known"
        )
    return [_scatter_into(call, found, reduction)]


def _scatter_sum(call: HloCall, found: LookUp) -> LazyTensor:
    """
    Converts a scatter that adds rows to the table, such as the gradient of a look-up.
    Skips rows with an index out of range.
    """
    build, element = call.build, call.element()
    start, rows = call.operands[0], build.whole(call.operands[2])
    indices = _indices(call, found, True)
    rows = _rows_inside(call, found, rows, indices.inside)
    type_ = tensor_of(element, found.table)
    axis = found.axis
    if found.along_all:
        assert axis is not None
        index = _aligned_places(call, found, indices.values[0], axis)
        rows = _aligned_places(call, found, rows, axis)
        op = ScatterSumOp.build(
            operands=[rows, build.cast(index, i64)],
            properties={"axis": IntegerAttr(axis, i64)},
            result_types=[type_],
        )
    elif axis is not None and not found.table_batch:
        order = _row_order(found, axis)
        rows = build.transpose(rows, [order.index(dim) for dim in range(len(order))])
        op = GatherGradOp.build(
            operands=[rows, indices.values[0], []],
            properties={"axis": IntegerAttr(axis, i64)},
            result_types=[type_],
        )
    else:
        value = _scatter_tuples(call, found, rows, indices)
        return _added(call, start, value)
    return _added(call, start, build.add(op).results[0])


def _added(call: HloCall, start: LazyTensor, value: SSAValue) -> LazyTensor:
    """
    Returns `value` plus `start`, the initial tensor of a scatter. Returns `value`
    itself if `start` is zero.
    """
    if start.scalar is not None and not start.scalar:
        return LazyTensor.of(value)
    inputs = [call.build.base(start), value]
    return LazyTensor.of(call.build.op("Add", inputs, call.shape(), call.element()))


def _scatter_tuples(
    call: HloCall, found: LookUp, rows: SSAValue, indices: Indices
) -> SSAValue:
    """
    Converts a scatter that adds rows at tuples of indices to a table of zeros, and
    returns the table. The caller adds the initial tensor.
    """
    build = call.build
    table_order, order = _tuple_form(found)
    rows = _rows_in_tuple_order(call, found, rows, order)
    sizes = [found.table[dim] for dim in table_order]
    op = ScatterSumOp.build(
        operands=[rows, _tuples(call, found, indices)],
        properties={"batch_dims": IntegerAttr(len(found.table_batch), i64)},
        result_types=[tensor_of(call.element(), tuple(sizes))],
    )
    value = build.add(op).results[0]
    return build.transpose(value, [table_order.index(d) for d in range(len(sizes))])


def _rows_in_tuple_order(
    call: HloCall, found: LookUp, rows: SSAValue, order: Sequence[int]
) -> SSAValue:
    """
    Returns the rows in the shape [...batch, ...remaining places, ...other dimensions of
    the table].
    """
    sizes = [size for size, dim in zip(found.rows, order, strict=True) if dim >= 0]
    real = [dim for dim in order if dim >= 0]
    rows = call.build.reshape(rows, sizes)
    return call.build.transpose(rows, [real.index(dim) for dim in range(len(real))])


def _rows_inside(
    call: HloCall, found: LookUp, rows: SSAValue, inside: SSAValue | None
) -> SSAValue:
    """Returns `rows` with zeros where the index of the row is out of range."""
    if inside is None:
        return rows
    build, own = call.build, LazyTensor.of(rows)
    places = [dim for dim in range(len(own.shape)) if dim not in found.window]
    shape = [size if dim in places else 1 for dim, size in enumerate(own.shape)]
    inputs = [
        build.reshape(inside, shape),
        rows,
        build.constant(np.array(0), own.element),
    ]
    return build.op("Where", inputs, own.shape, own.element)


def _scatter_into(call: HloCall, found: LookUp, reduction: str) -> LazyTensor:
    """
    Converts a scatter that replaces rows of the table, such as `x.at[i].set(y)`, or
    that combines new rows with the rows of the table by `reduction`, an attribute of
    ScatterND. Skips rows with an index out of range. Raises UnsupportedError for batch
    dimensions.
    """
    build, element = call.build, call.element()
    indices = _indices(call, found, True)
    table_order, order = _tuple_form(found)
    table = build.transpose(build.whole(call.operands[0]), table_order)
    rows = _rows_in_tuple_order(call, found, build.whole(call.operands[2]), order)
    if found.table_batch:
        raise UnsupportedError(
            "it replaces or combines elements in several tables, as jax.vmap makes them"
        )
    # Rows out of range are those of one more index, which is then cut off.
    shape = list(LazyTensor.of(table).shape)
    pads = [0] * 2 * len(shape)
    pads[len(shape)] = 1
    zero = build.constant(np.array(0), element)
    inputs = [table, build.integers(*pads), zero]
    table = build.op("Pad", inputs, [shape[0] + 1, *shape[1:]], element)
    place = build.cast(indices.values[0], i64)
    assert indices.inside is not None
    last = build.integer(shape[0])
    sizes = LazyTensor.of(place).shape
    place = build.op("Where", [indices.inside, place, last], sizes, i64)
    tuples = _tuples(call, found, Indices([place, *indices.values[1:]], None))
    value = build.op(
        "ScatterND",
        [table, tuples, rows],
        LazyTensor.of(table).shape,
        element,
        reduction=reduction,
    )
    value = build.slice(value, [0] * len(shape), shape)
    return LazyTensor.of(
        build.transpose(value, [table_order.index(d) for d in range(len(shape))])
    )
