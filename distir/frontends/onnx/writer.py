"""Writes the nodes of an ONNX graph one by one, and inlines the bodies of nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)

from distir.errors import DistIRError, listed
from distir.frontends.onnx.facts import Facts
from distir.frontends.onnx.file import is_large
from distir.frontends.onnx.names import node_name

Names = Mapping[str, str]
"""Names of values in a body, mapped to their names in the new graph."""


class GraphWriter(ABC):
    """
    A new list of nodes for the graph of a model, with facts about the values of the
    nodes.

    - `nodes`: the nodes so far, in order. A known value of a body, such as the index of
      a loop, is written only where a node reads it.
    - `tensors`: the initializers of the inlined bodies.
    """

    def __init__(
        self,
        model: ModelProto,
        inputs: Mapping[str, TypeProto],
        dims: Mapping[str, int],
    ):
        self.facts = Facts(model, inputs, dims)
        self.nodes: list[NodeProto] = []
        self._waiting: dict[str, NodeProto] = {}
        """
        The node that computes each known value, by the name of the value, until it is
        read.
        """
        self.tensors: list[TensorProto] = []
        graph = model.graph
        self.taken = {o for node in graph.node for o in node.output}
        self.taken |= {v.name for v in [*graph.input, *graph.initializer]}
        self._numbers = defaultdict[str, Iterator[int]](lambda: count(1))
        self._held: dict[int, tuple[GraphProto, Names]] = {}
        """Each body, and the new names of its initializers, by the body's identity."""

    @abstractmethod
    def write(self, node: NodeProto, names: Names | None, scope: str = "") -> Names:
        """
        Adds the nodes that replace `node`, and returns the names of the node's results.
        `names` maps the names of values in the body that contains the node to names in
        the graph. It is None if the node is in the graph itself and not in a body.
        """

    def emit(self, node: NodeProto, *, lazily: bool = True) -> None:
        """
        Adds a node. If `lazily` and the node's results are known, the node is added
        only when a later node reads its results.
        """
        self.facts.learn(node)
        if lazily and all(name in self.facts.arrays for name in node.output if name):
            self._waiting |= {name: node for name in node.output if name}
        else:
            self._append(node)

    def _append(self, node: NodeProto) -> None:
        for name in node.input:
            self.need(name)
        self.nodes.append(node)

    def need(self, name: str) -> None:
        """
        Adds the node that computes the value `name`, if that node is not added yet. A
        known integer becomes a constant. Floats stay computed, because they may depend
        on parameters.
        """
        node = self._waiting.pop(name, None)
        if node is None:
            return
        array = self.facts.arrays[name]
        if array.dtype.kind in "iub" and len(node.output) == 1:
            tensor = numpy_helper.from_array(array)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            return
        for each in node.output:
            self._waiting.pop(each, None)
        self._append(node)

    def new_name(self, name: str) -> str:
        """
        Returns a free name for a value: `name` if it is free, else `name` with a
        number.
        """
        found = name
        while found in self.taken:
            found = f"{name}.{next(self._numbers[name])}"
        self.taken.add(found)
        return found

    def add(
        self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any
    ) -> str:
        """
        Adds a node of a standard operator with one result, and returns the result's
        name, which is made from `name`.
        """
        output = self.new_name(name)
        self.emit(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, array: npt.NDArray[Any], name: str) -> str:
        """Adds a constant and returns its name, which is made from `name`."""
        return self.add("Constant", [], name, value=numpy_helper.from_array(array))

    def unsqueezed(self, name: str, axis: int) -> str:
        """
        Adds a node that inserts a dimension of size 1 at `axis`, and returns the name
        of the node's result.
        """
        if self.facts.versions[""] < 13:
            return self.add("Unsqueeze", [name], f"{name}.row", axes=[axis])
        axes = self.constant(np.array([axis]), f"{name}.axis")
        return self.add("Unsqueeze", [name, axes], f"{name}.row")

    def splice(
        self, body: GraphProto, given: Names, names: Names | None, scope: str
    ) -> list[str]:
        """
        Adds the nodes of a body and returns the names of the body's results.

        - `given`: the names, in the graph, of the values that the body's inputs get.
        - `names`: maps the names of values in the surrounding body to names in the graph;
          None if the graph itself surrounds the body.
        - `scope`: the scope for nodes that have none.
        """
        inside = {**(names or {}), **self._initializers(body), **given}
        for node in body.node:
            inside |= self.write(node, inside, scope)
        return [inside.get(o.name, o.name) for o in body.output]

    def _initializers(self, body: GraphProto) -> Names:
        """
        Makes the initializers of a body initializers of the graph, and returns their
        new names.
        """
        if id(body) in self._held:
            return self._held[id(body)][1]
        names: dict[str, str] = {}
        for tensor in body.initializer:
            copy = TensorProto()
            copy.CopyFrom(tensor)
            names[tensor.name] = copy.name = self.new_name(tensor.name)
            self.tensors.append(copy)
            self.facts.learn_tensor(copy, has_data=not is_large(copy))
        for sparse in body.sparse_initializer:
            name = self.new_name(sparse.values.name)
            names[sparse.values.name] = name
            self.emit(helper.make_node("Constant", [], [name], sparse_value=sparse))
        self._held[id(body)] = body, names
        return names

    def known(self, node: NodeProto, name: str, what: str) -> Any:
        """
        Returns the number that the value `name` holds and that decides how `node` is
        written. Raises DistIRError if the number is unknown before the program runs;
        `what` describes the number in the error's message.
        """
        array = self.facts.arrays.get(name)
        if array is not None and array.size == 1:
            return array.reshape(())[()]
        origins = self.facts.origins(name)
        inputs = [o for o in origins if o not in self.facts.producers]
        sizes = [self.facts.shape(each) for each in inputs]
        remedy = "export the model without control flow that depends on data"
        if inputs and all(s is not None and all(n == 1 for n in s) for s in sizes):
            values = " ".join(f"--value {each}=NUMBER" for each in inputs)
            remedy = f"say what it is with {values} (value= in Python)"
        reason = "is not known"
        if inputs:
            reason = f"depends on the values of {listed([repr(i) for i in inputs])}"
        raise DistIRError(
            f"{node_name(node)} has a body, and {what} {reason}, but a program of DistIR is "
            f"straight-line code; {remedy}"
        )
