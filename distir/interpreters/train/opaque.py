"""
Runs opaque modules on arrays, and gives their cost. The caller provides the modules,
because a program does not contain their code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Protocol

import numpy as np

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.opaque import OpaqueBase, OpaqueGradOp, OpaqueOp
from distir.errors import DistIRError
from distir.interpreters.joint_ops import Peers
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.train.arithmetic import Array, computes_jointly
from distir.program import describe
from distir.sharding.kernel_rule import evaluated
from distir.sharding.opaque_rule import Placed, parse_opaque_rule


class OpaqueModule(Protocol):
    """
    A module that runs on whole arrays. The caller passes an op, the op's inputs and,
    for a gradient op, the gradients of the module's results. The module returns the
    results of the op.
    """

    def __call__(
        self, op: OpaqueBase, inputs: Sequence[Array], gradients: Sequence[Array]
    ) -> Sequence[Array]: ...


_MODULES: dict[str, OpaqueModule] = {}
"""
The modules that programs may currently call, by name. They are shared by the threads in
which the devices of a program run.
"""


@contextlib.contextmanager
def opaque_modules(modules: Mapping[str, OpaqueModule]) -> Generator[None]:
    """
    A context manager that makes `modules` available to programs that run on arrays. The
    keys are the names of the modules in the programs.
    """
    before = dict(_MODULES)
    _MODULES.update(modules)
    try:
        yield
    finally:
        _MODULES.clear()
        _MODULES.update(before)


@computes_jointly(OpaqueOp, OpaqueGradOp)
def opaque(op: OpaqueBase, peers: Peers, *operands: Array) -> tuple[Array, ...]:
    """
    Returns the results of an opaque module, or its gradients. If the module
    communicates among devices, the devices join their parts into whole arrays, and each
    device takes its part of the results. Raises DistIRError if the module is not
    available.
    """
    if op.symbol not in _MODULES:
        raise DistIRError(
            f"{describe(op)}: the opaque module {op.symbol!r} is in the script that the "
            f"program was made in, not in the program, so that it runs there alone; run it "
            f"with distir.parallelize"
        )
    count = len(op.gradients) if isinstance(op, OpaqueGradOp) else 0
    count += len(op.inputs)
    rule = parse_opaque_rule(op.rule.data)
    whole = [
        _joined(op, peers.all(np.asarray(x)), own)
        for x, own in zip(operands[:count], rule.operands, strict=True)
    ]
    first = count - len(op.inputs)
    found = _MODULES[op.symbol](op, whole[first:], whole[:first])
    is_gradient = isinstance(op, OpaqueGradOp)
    results: list[Array] = []
    for array, own in zip(found, rule.results, strict=True):
        copies = prod(n for axis, n in _sizes(op) if axis not in dict(own))
        # Gradients of whole operands are terms of a sum.
        term = array / copies if is_gradient and copies > 1 else array
        results.append(_part(op, term, own, peers.position))
    return tuple(results)


def _sizes(op: OpaqueBase) -> list[tuple[str, int]]:
    return list(zip(op.axis_names, op.axis_sizes, strict=True))


def _joined(op: OpaqueBase, parts: Sequence[Array], own: Placed) -> Array:
    """Returns a whole tensor from the parts of all devices of a group."""
    dims = dict(own)
    sizes = _sizes(op)
    arrays = dict(zip(product(*(range(n) for _, n in sizes)), parts, strict=True))
    for axis, n in reversed(sizes):
        places = dict.fromkeys(place[:-1] for place in arrays)
        arrays = {
            place: np.concatenate([arrays[*place, i] for i in range(n)], dims[axis])
            if axis in dims
            else arrays[*place, 0]
            for place in places
        }
    return arrays[()]


def _part(op: OpaqueBase, array: Array, own: Placed, position: int) -> Array:
    """
    Returns the part of the tensor `array` on the device with index `position` in a
    group.
    """
    dims = dict(own)
    for axis, n in reversed(_sizes(op)):
        position, place = divmod(position, n)
        if axis in dims:
            array = np.split(array, n, dims[axis])[place]
    return array


@cost_function("train.opaque", "train.opaque_grad")
def declared_cost(context: CostContext) -> Cost:
    """
    Returns the cost of an opaque module: the roofline time of its declared or measured
    operations and of the bytes of operands and results, and its workspace in bytes.
    """
    op = context.op
    assert isinstance(op, OpaqueBase)
    cost = context.roofline()
    if op.workspace is None:
        return cost
    rule = parse_opaque_rule(op.rule.data)
    count = len(rule.operands)
    parts = context.work.parts
    whole = rule.factors.sizes(
        [shape_of(v) for v in op.operands[:count]], [shape_of(v) for v in op.results]
    )
    used = evaluated(op.workspace.data, whole)
    # The measured time is that of the whole module.
    share = prod(parts.values())
    return replace(cost, workspace=-(-used // share))
