"""Writes the nodes of an ONNX graph one by one, and puts bodies of nodes among them."""

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
"""Names of values in a body, each with its name in the graph that is written."""


class GraphWriter(ABC):
    """
    A new list of nodes for the graph of a model, with facts about their values.

    - `nodes`: the nodes so far, in order. A known value of a body, such as the index of
      a loop, is only written where an other node reads it.
    - `tensors`: the initializers of bodies that were written.
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
        """By name of a known value, the node that computes it, until it is read."""
        self.tensors: list[TensorProto] = []
        graph = model.graph
        self.taken = {o for node in graph.node for o in node.output}
        self.taken |= {v.name for v in [*graph.input, *graph.initializer]}
        self._numbers = defaultdict[str, Iterator[int]](lambda: count(1))
        self._held: dict[int, tuple[GraphProto, Names]] = {}
        """By the identity of a body, the body and the names of its initializers."""

    @abstractmethod
    def write(self, node: NodeProto, names: Names | None, scope: str = "") -> Names:
        """
        Adds what stands for a node of the graph, or, with `names`, of a body. Returns the
        names of the node's results.
        """

    def emit(self, node: NodeProto, *, lazily: bool = True) -> None:
        """Adds a node, if `lazily` not before its results are read where they are known."""
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
        Adds the node that computes a value, if it is waiting; integers become constants.
        Floats stay computed, as they may be of parameters.
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
        """Returns a name of a value that is not taken, the given one if possible."""
        found = name
        while found in self.taken:
            found = f"{name}.{next(self._numbers[name])}"
        self.taken.add(found)
        return found

    def add(
        self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any
    ) -> str:
        """
        Adds a node of the standard with one result, and returns the name of that, which is
        like `name`.
        """
        output = self.new_name(name)
        self.emit(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, array: npt.NDArray[Any], name: str) -> str:
        """Adds a constant and returns its name."""
        return self.add("Constant", [], name, value=numpy_helper.from_array(array))

    def unsqueezed(self, name: str, axis: int) -> str:
        """Adds a node that gives a value a dimension of size 1."""
        if self.facts.versions[""] < 13:
            return self.add("Unsqueeze", [name], f"{name}.row", axes=[axis])
        axes = self.constant(np.array([axis]), f"{name}.axis")
        return self.add("Unsqueeze", [name, axes], f"{name}.row")

    def splice(
        self, body: GraphProto, given: Names, names: Names | None, scope: str
    ) -> list[str]:
        """
        Adds the nodes of a body and returns the names of its results.

        - `given`: names of the values that its inputs have.
        - `names`: those of the body around it, None if that is the graph.
        - `scope`: the scope of nodes that have none.
        """
        inside = {**(names or {}), **self._initializers(body), **given}
        for node in body.node:
            inside |= self.write(node, inside, scope)
        return [inside.get(o.name, o.name) for o in body.output]

    def _initializers(self, body: GraphProto) -> Names:
        """Returns the names of a body's initializers, which belong to the graph then."""
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
        Returns the number that a value is, which must be known before the program runs, as
        it says what a node does: `what`, in a message. Raises DistIRError.
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
