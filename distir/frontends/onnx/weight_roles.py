"""
Decides which tensors of an ONNX file are trained.

A file stores parameters, buffers and literals alike as initializers. PyTorch's newer
exporter records the kind of each tensor, and the importer trusts this record. In files
without the record, a tensor that operators use as a weight counts as a parameter, and a
tensor that cannot be a parameter counts as a constant. Any other tensor is in doubt,
and its argument has the attribute `dist.doubt`: the program can be run, but not trained
until the user states the tensor's role.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from onnx import AttributeProto, GraphProto, NodeProto

from distir.dialects.onnx_ops.inference import KNOWN_SIZE
from distir.dialects.onnx_ops.traits import ARITHMETIC, SIZE_OPERANDS, WEIGHT_OPERANDS
from distir.errors import DistIRError, listed
from distir.frontends.onnx.names import domain_of
from distir.frontends.onnx.torch_metadata import (
    PARAMETER,
    ExportedTensors,
    exported_tensors,
    operands_in_torch,
    operation_in_torch,
)
from distir.program.doubts import FOLDED, TRACED, UNKNOWN

Role = Literal["parameter", "constant", "literal"]

_STATISTICS: Mapping[str, tuple[int, ...]] = {"onnx.BatchNormalization": (3, 4)}
"""
By operator, the operands that are averages over batches. No gradient updates them.
"""

_SIZES = {**SIZE_OPERANDS, "onnx.Upsample": (1,)}
"""By operator, the positions of the operands that determine sizes of results."""

_SEEN_THROUGH = ("onnx.Identity", "onnx.Transpose", "onnx.Cast")
_NUMBER = "scalar_tensor_default"
"""The name that PyTorch's exporter gives to numbers in a module's code."""


@dataclass(frozen=True)
class WeightRole:
    """
    The role of a float tensor in a file. A `literal` becomes an op of the program, and
    any other tensor an argument. `doubt` is the reason why a parameter cannot be
    trained (see `distir.program.doubts`); it is None for a parameter that can.
    """

    role: Role
    frozen: bool = False
    doubt: str | None = None


class WeightRoles:
    """
    Decides the roles of the float tensors of one graph.

    - `source`, `prepared`: the graph as read from the file, and the graph to import.
    - `weights`: the names of the tensors.
    - `trainable`, `frozen`: patterns of names (`*`, `?`, `[...]`) that override the
      file; a tensor that matches both is trained. Raises DistIRError for a pattern
      without a match.
    - `is_traced`: whether PyTorch wrote the file. If such a file does not record the
      kinds of the tensors, PyTorch's older exporter wrote it from a trace.
    """

    def __init__(
        self,
        source: GraphProto,
        prepared: GraphProto,
        weights: Sequence[str],
        trainable: Sequence[str] = (),
        frozen: Sequence[str] = (),
        *,
        is_traced: bool = False,
    ):
        self.weights = frozenset(weights)
        self.exported = exported_tensors(source)
        self.is_traced = is_traced and self.exported is None
        self.guessed: list[str] = []
        """The names of parameters that are recognised only by their use."""
        lost = self.exported.kinds if self.exported is not None else ()
        self.frozen = matching(frozen, weights, "frozen", lost)
        self.trainable = matching(trainable, weights, "trainable", lost)
        self.uses: dict[str, list[tuple[NodeProto, int]]] = {}
        for node in prepared.node:
            for position, name in enumerate(node.input):
                self.uses.setdefault(name, []).append((node, position))
        self.replaced = self._replaced(prepared)
        self.sizes = decides_sizes(prepared)

    def _replaced(self, graph: GraphProto) -> set[str]:
        """
        Returns the names of tensors that nodes read in place of a parameter or buffer.
        The exporter made such a tensor by transposing or folding the parameter or
        buffer, or by merging it with an equal tensor.
        """
        if self.exported is None:
            return set()
        operations: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            operations.setdefault(operation_in_torch(node), []).append(node)
        found: set[str] = set()
        for nodes in operations.values():
            operands = operands_in_torch(nodes[0]) & self.exported.names.keys()
            read = {name for node in nodes for name in node.input}
            if {self.exported.names[value] for value in operands} - read:
                found |= read & self.weights
        return found

    def of(self, name: str, rank: int, size: int) -> WeightRole:
        """
        Returns the role of the tensor `name`, which has `rank` dimensions and `size`
        elements.
        """
        if name in self.trainable:
            return WeightRole("parameter")
        if name in self.frozen:
            return WeightRole("parameter", frozen=True)
        if self.exported is not None:
            return self._as_exported(self.exported, name, rank, size)
        if name in self.sizes and size <= KNOWN_SIZE:
            return WeightRole("literal")
        uses = list(self._final_uses(name))
        if uses and all(_is_operand(_STATISTICS, *use) for use in uses):
            return WeightRole("constant")
        if self.is_traced and "::" in name:
            return WeightRole("parameter", doubt=TRACED)
        if rank == 0 and "." not in name and not self.is_traced:
            return WeightRole("literal")
        is_vector = rank == 1 < size
        if any(
            _is_operand(WEIGHT_OPERANDS, node, position)
            or (is_vector and _name(node) in ARITHMETIC)
            for node, position in uses
        ):
            self.guessed.append(name)
            return WeightRole("parameter")
        return WeightRole("parameter", doubt=UNKNOWN)

    def _as_exported(
        self, exported: ExportedTensors, name: str, rank: int, size: int
    ) -> WeightRole:
        fixed = WeightRole("constant" if rank else "literal")
        kind = exported.kinds.get(name)
        if kind not in (None, PARAMETER):
            return fixed
        if name in self.replaced:
            return WeightRole("parameter", doubt=FOLDED)
        if kind == PARAMETER:
            return WeightRole("parameter")
        # No tensor of the module has this name. If no operation of PyTorch reads it, it
        # belongs to the expansion of one operation.
        users = [node for node, _ in self.uses.get(name, ())]
        if not any(name in operands_in_torch(node) for node in users):
            return fixed
        is_number = name.startswith(_NUMBER) or (
            size == 1 and self.weights >= parameters_of(exported)
        )
        return fixed if is_number else WeightRole("parameter", doubt=FOLDED)

    def _final_uses(self, name: str) -> Iterator[tuple[NodeProto, int]]:
        """
        Yields the nodes that use the tensor `name`, each with the operand's index.
        Instead of an identity, a transpose or a cast of the tensor, yields the users of
        its result.
        """
        names = [name]
        while names:
            for node, position in self.uses.get(names.pop(), ()):
                if _name(node) in _SEEN_THROUGH:
                    names.append(node.output[0])
                else:
                    yield node, position


def parameters_of(exported: ExportedTensors) -> set[str]:
    """Returns the names of all exported parameters in the state dict."""
    return {name for name, kind in exported.kinds.items() if kind == PARAMETER}


def matching(
    patterns: Sequence[str],
    names: Sequence[str],
    option: str,
    lost: Collection[str] = (),
) -> set[str]:
    """
    Returns the `names` that match one of `patterns`. `option` is the name of the option
    in messages. Raises DistIRError if a pattern matches no name in `names` or `lost`,
    the names that an exporter may have removed.
    """
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        gone = [name for name in lost if fnmatchcase(name, pattern)]
        if gone and not matched:
            raise DistIRError(
                f"{listed(gone)}, to be {option}, is not in the model's file: the model "
                f"does not use it, or PyTorch's exporter merged or folded it; export "
                f"with torch.onnx.export(..., dynamo=True, optimize=False)"
            )
        if not matched:
            raise DistIRError(
                f"no weight of the model matches the pattern {pattern!r} of "
                f"{option} weights; its weights are {listed(names) or 'none'}"
            )
        found |= matched
    return found


def _name(node: NodeProto) -> str:
    """
    Returns the operator of a node, or "" if the node is not in ONNX's default domain.
    """
    return "" if domain_of(node) else f"onnx.{node.op_type}"


def _is_operand(
    operands: Mapping[str, tuple[int, ...]], node: NodeProto, position: int
) -> bool:
    return position in operands.get(_name(node), ())


def decides_sizes(graph: GraphProto) -> set[str]:
    """
    Returns the names of the values of `graph` that only determine sizes, directly or
    through the nodes that use them. The nodes must be in order.
    """
    kept = {output.name for output in graph.output} | _read_in_bodies(graph)
    decided: set[str] = set()
    for node in reversed(graph.node):
        outputs = [name for name in node.output if name]
        passes_on = bool(outputs) and decided.issuperset(outputs)
        for position, name in enumerate(node.input):
            if passes_on or _is_operand(_SIZES, node, position):
                decided.add(name)
            else:
                kept.add(name)
        decided -= kept
    return decided


def _read_in_bodies(graph: GraphProto) -> set[str]:
    """Returns the names of values that bodies of loops and conditions read."""
    found: set[str] = set()
    pending: list[NodeProto] = [
        inner for node in graph.node for inner in _inner_nodes(node)
    ]
    while pending:
        node = pending.pop()
        found.update(node.input)
        pending += _inner_nodes(node)
    return found


def _inner_nodes(node: NodeProto) -> list[NodeProto]:
    graphs = [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
    return [inner for graph in graphs for inner in graph.node]
