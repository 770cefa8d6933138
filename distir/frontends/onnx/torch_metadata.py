"""
Reads the metadata that PyTorch's newer exporter writes into ONNX files: the kind of
each tensor, and the PyTorch operation that each node comes from.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from onnx import GraphProto, NodeProto

from distir.frontends.onnx.names import value_infos

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FX_NODE = "pkg.torch.onnx.fx_node"
_INPUT = re.compile(
    r"(?P<value>\w+): (?P<kind>[A-Z_]+) target=(?P<target>'.*?'|\".*?\")"
)
_OPERATION = re.compile(r"%\w+ : .*?\[target=(?P<target>[\w.]+)\]\((?P<arguments>.*)")
_VALUE = re.compile(r"%(\w+)")
_DETACH = "torch.ops.aten.detach"

PARAMETER = "PARAMETER"


@dataclass(frozen=True)
class ExportedTensors:
    """
    The tensors of an exported program, including unused ones.

    - `kinds`: the kind of each tensor, by its name in the state dict: `PARAMETER`,
      `BUFFER` or `CONSTANT_TENSOR`.
    - `names`: the name in the state dict, by the name in the exported program.
    """

    kinds: dict[str, str]
    names: dict[str, str]


def exported_tensors(graph: GraphProto) -> ExportedTensors | None:
    """
    Returns the metadata about tensors that PyTorch's exporter wrote into a graph, or
    None if the graph has none.
    """
    kinds: dict[str, str] = {}
    names: dict[str, str] = {}
    for entry in graph.metadata_props:
        if entry.key != _SIGNATURE:
            continue
        for line in entry.value.splitlines():
            if found := _INPUT.match(line):
                target = str(ast.literal_eval(found["target"]))
                kinds[target], names[found["value"]] = found["kind"], target
    for name, info in value_infos(graph).items():
        for entry in info.metadata_props:
            if entry.key == _KIND:
                kinds[name] = entry.value
    return ExportedTensors(kinds, names) if kinds else None


def operation_in_torch(node: NodeProto) -> str:
    """
    Returns the PyTorch operation from which a node comes, with its operands, as text.
    Returns "" if the operation is unknown.
    """
    return next((e.value for e in node.metadata_props if e.key == _FX_NODE), "")


def operands_in_torch(node: NodeProto) -> frozenset[str]:
    """
    Returns the operands of the PyTorch operation from which a node comes, by their
    names in the exported program.
    """
    found = _operation(node)
    return frozenset(_VALUE.findall(found["arguments"]) if found else ())


def is_detach(node: NodeProto) -> bool:
    """Whether PyTorch stops the gradient at this node."""
    found = _operation(node)
    return node.op_type == "Identity" and bool(
        found and found["target"].startswith(_DETACH)
    )


def lost_detach(node: NodeProto) -> bool:
    """
    Whether a node read the result of a `detach` that the exporter's optimizer removed.
    The node's metadata then has an operand with the name `detach` or `detach` with a
    number.
    """
    read = {n for n in operands_in_torch(node) if re.fullmatch(r"detach(_\d+)?", n)}
    return bool(read - set(node.input)) and not is_detach(node)


def _operation(node: NodeProto) -> re.Match[str] | None:
    return _OPERATION.match(operation_in_torch(node))
