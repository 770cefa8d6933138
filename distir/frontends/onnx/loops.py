"""Unrolls ONNX Loops and Scans whose number of steps is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper

from distir.errors import DistIRError
from distir.frontends.onnx.names import node_name
from distir.frontends.onnx.writer import GraphWriter, Names

MAX_NODES = 20_000
"""The largest number of nodes to which a loop may grow. A larger loop is refused."""


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Returns the attributes of a node by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def require(node: NodeProto, holds: bool, text: str) -> None:
    """
    Raises DistIRError unless `holds` is true. The message consists of the node's name
    and `text`.
    """
    if not holds:
        raise DistIRError(f"{node_name(node)} {text}; export the model again")


def body_of(node: NodeProto, name: str) -> GraphProto:
    """
    Returns the body in the attribute `name` of a node. Raises DistIRError if the node
    has no such attribute.
    """
    body = attributes_of(node).get(name)
    if not isinstance(body, GraphProto):
        problem = "is without its" if body is None else "has no graph in its"
        raise DistIRError(
            f"{node_name(node)} {problem} attribute {name!r}; export the model again"
        )
    return body


def unrolled_loop(
    writer: GraphWriter,
    node: NodeProto,
    inputs: Sequence[str],
    names: Names | None,
    scope: str,
) -> list[str]:
    """
    Writes the steps of a Loop into `writer` and returns the names of the Loop's
    results. `inputs` are the names of its operands. `names` maps the names of values in
    the surrounding body to names in the graph. Raises DistIRError if the Loop is
    malformed or has too many steps, or if its number of steps is unknown.
    """
    body = body_of(node, "body")
    states = list(inputs[2:])
    require(
        node,
        len(inputs) >= 2
        and len(body.input) == len(states) + 2
        and len(body.output) == len(node.output) + 1 > len(states),
        f"has {len(inputs)} operands and {len(node.output)} results, but a body with "
        f"{len(body.input)} and {len(body.output)}",
    )
    number, condition = inputs[0], inputs[1]
    steps = writer.known(node, number, "its number of steps") if number else None
    going = "whether it goes on"
    goes_on = writer.known(node, condition, going) if condition else True
    parts: list[list[str]] = [[] for _ in node.output[len(states) :]]
    start, step = len(writer.nodes), 0
    while goes_on and (steps is None or step < steps):
        if len(writer.nodes) - start > MAX_NODES:
            raise DistIRError(
                f"{node_name(node)} has more than {step} steps of {len(body.node)} nodes, "
                f"which are more than the {MAX_NODES} nodes that DistIR unrolls; export "
                "the model for fewer steps"
            )
        formal = [i.name for i in body.input]
        index = writer.constant(np.array(step, np.int64), f"{formal[0]}.{step}")
        on = writer.constant(np.array(True), f"{formal[1]}.{step}")
        given = dict(zip(formal, [index, on, *states], strict=True))
        results = writer.splice(body, given, names, scope)
        states = results[1 : len(states) + 1]
        for part, name in zip(parts, results[len(states) + 1 :], strict=True):
            part.append(writer.unsqueezed(name, 0))
        goes_on = writer.known(node, results[0], going)
        step += 1
    rows = [
        _concatenated(writer, part, output, 0)
        if part
        else _empty(writer, node, body, k)
        for k, (part, output) in enumerate(
            zip(parts, node.output[len(states) :], strict=True), len(states)
        )
    ]
    return [*states, *rows]


def _concatenated(
    writer: GraphWriter, parts: Sequence[str], name: str, axis: int
) -> str:
    return writer.add("Concat", parts, f"{name}.rows", axis=axis)


def _empty(writer: GraphWriter, node: NodeProto, body: GraphProto, result: int) -> str:
    """
    Returns the name of result `result`, which stacks the values of all steps, for a
    loop without steps. The result has no rows, and its unknown sizes are 0.
    """
    type_ = body.output[result + 1].type.tensor_type
    require(
        node, type_.elem_type > 0, f"has a body without the type of result {result}"
    )
    dtype = helper.tensor_dtype_to_np_dtype(type_.elem_type)
    sizes = [max(dim.dim_value, 0) for dim in type_.shape.dim]
    return writer.constant(np.empty((0, *sizes), dtype), f"{node.output[result]}.rows")


def unrolled_scan(
    writer: GraphWriter,
    node: NodeProto,
    inputs: Sequence[str],
    names: Names | None,
    scope: str,
) -> list[str]:
    """
    Writes the steps of a Scan into `writer` and returns the names of the Scan's
    results. `inputs` are the names of its operands. `names` maps the names of values in
    the surrounding body to names in the graph. Raises DistIRError if the Scan is
    malformed or has too many steps, or if its number of steps is unknown.
    """
    form = _scan_form(node)
    body, states = form.body, list(inputs[: form.states])
    steps = _steps(writer, node, inputs[form.states], form.in_axes[0])
    if steps * len(body.node) > MAX_NODES:
        raise DistIRError(
            f"{node_name(node)} has {steps} steps of {len(body.node)} nodes, more "
            f"than the {MAX_NODES} nodes that DistIR unrolls; export the model for "
            "a shorter sequence"
        )
    formal = [i.name for i in body.input]
    parts: list[list[str]] = [[] for _ in form.out_axes]
    for step in range(steps):
        given = dict(zip(formal, states, strict=False))
        for k, name in enumerate(inputs[form.states :]):
            index = np.array(steps - 1 - step if form.in_reversed[k] else step)
            at = writer.constant(index, f"{formal[form.states + k]}.index.{step}")
            given[formal[form.states + k]] = writer.add(
                "Gather", [name, at], f"{name}.{step}", axis=form.in_axes[k]
            )
        results = writer.splice(body, given, names, scope)
        states = results[: form.states]
        for part, name, axis in zip(
            parts, results[form.states :], form.out_axes, strict=True
        ):
            part.append(writer.unsqueezed(name, axis))
    rows = [
        _concatenated(writer, part[::-1] if backwards else part, name, axis)
        for part, backwards, name, axis in zip(
            parts,
            form.out_reversed,
            node.output[form.states :],
            form.out_axes,
            strict=True,
        )
    ]
    return [*states, *rows]


def _steps(writer: GraphWriter, node: NodeProto, name: str, axis: int) -> int:
    shape = writer.facts.shape(name) or []
    steps = shape[axis] if -len(shape) <= axis < len(shape) else None
    if not steps:
        raise DistIRError(
            f"{node_name(node)} has a body and an unknown number of steps, but a "
            "program of DistIR is straight-line code; export the model with static "
            "shapes"
        )
    return steps


@dataclass(frozen=True)
class _ScanForm:
    """
    The parts of a Scan: its body, the number of its states, and the axis of each
    scanned operand and each stacked result, with a flag for reversed order.
    """

    body: GraphProto
    states: int
    in_axes: Sequence[int]
    in_reversed: Sequence[int]
    out_axes: Sequence[int]
    out_reversed: Sequence[int]


def _scan_form(node: NodeProto) -> _ScanForm:
    """
    Returns the parts of a Scan. Raises DistIRError if the Scan does not conform to the
    standard.
    """
    attributes: Mapping[str, Any] = attributes_of(node)
    body, scans = body_of(node, "body"), attributes.get("num_scan_inputs")
    if not isinstance(scans, int):
        raise DistIRError(
            f"{node_name(node)} has no number in its attribute 'num_scan_inputs'; export the "
            f"model again"
        )
    count = len(node.input)
    require(
        node, 0 < scans <= count, f"has num_scan_inputs {scans} of {count} operands"
    )
    states = count - scans
    outputs = len(node.output) - states
    require(
        node,
        len(body.input) == count and len(body.output) == len(node.output) >= states,
        f"has {count} operands and {len(node.output)} results, but a body with "
        f"{len(body.input)} and {len(body.output)}",
    )
    numbers: list[Sequence[int]] = []
    for name, expected in (
        ("scan_input_axes", scans),
        ("scan_input_directions", scans),
        ("scan_output_axes", outputs),
        ("scan_output_directions", outputs),
    ):
        given = attributes.get(name, [0] * expected)
        require(
            node,
            len(given) == expected,
            f"has {len(given)} {name} instead of {expected}",
        )
        numbers.append(given)
    return _ScanForm(body, states, *numbers)
