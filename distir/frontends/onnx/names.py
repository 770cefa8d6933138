"""
Names of ONNX nodes, values and models, and scopes of nodes. The scope is the module of
the source model that a node came from. PyTorch's newer exporter writes the scope into
the node's metadata, the older exporter into the node's name.
"""

from __future__ import annotations

import ast
import functools

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, LocationAttr, StringAttr

_STANDARD = ("", "ai.onnx")

TRAIN_DOMAIN = "distir.train"
"""The domain of nodes that stand for ops of the `train` dialect."""


def domain_of(node: NodeProto) -> str:
    """
    Returns the domain of the node's operator. Returns "" for the default domain, which
    has two spellings.
    """
    return "" if node.domain in _STANDARD else node.domain


def node_name(node: NodeProto) -> str:
    """Returns a text that identifies a node in messages: operator, name and domain."""
    domain = domain_of(node) or "ai.onnx"
    name = node.name or (node.output[0] if node.output else "")
    return f"{node.op_type} {name!r} (domain {domain})"


def opset_versions(model: ModelProto) -> dict[str, int]:
    """Returns the opset version that the model imports, by domain."""
    return {
        "" if o.domain in _STANDARD else o.domain: o.version for o in model.opset_import
    }


def value_infos(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """
    Returns the types that the model declares for intermediate values and outputs, by
    name.
    """
    return {v.name: v for v in [*graph.value_info, *graph.output]}


_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
_NAMESPACE = "namespace"

LINE = "pkg.distir.line"
"""The metadata of a node with `file:line` of the module's code that it came from."""


def node_scope(node: NodeProto) -> str:
    """
    Returns the dotted path of the module of the source model from which a node came, or
    "" if the module is unknown.
    """
    metadata = {p.key: p.value for p in node.metadata_props}
    if _NAME_SCOPES in metadata:
        return _from_name_scopes(metadata[_NAME_SCOPES])
    if _NAMESPACE in metadata:
        return _from_namespace(metadata[_NAMESPACE])
    return _from_name(node.name)


def node_location(node: NodeProto) -> LocationAttr | None:
    """
    Returns the source line of the module's code from which a node came, or None if the
    line is unknown.
    """
    line = next((p.value for p in node.metadata_props if p.key == LINE), "")
    file, _, number = line.rpartition(":")
    if not file or not number.isdecimal():
        return None
    return _location(file, int(number))


@functools.lru_cache(4096)
def _location(file: str, line: int) -> LocationAttr:
    column = IntAttr(0)
    return FileLineColLoc(StringAttr(file), IntAttr(line), column)


def set_scope(node: NodeProto, scope: str) -> None:
    """
    Writes `scope` into the metadata of a node without a scope, where `node_scope` finds
    it.
    """
    node.metadata_props.add(key=_NAME_SCOPES, value=repr([scope, node.op_type]))


@functools.lru_cache(4096)  # the nodes that PyTorch writes for one operation share it
def _from_name_scopes(text: str) -> str:
    """
    Returns the scope from a text such as `['', 'encoder', 'encoder.0', 'linear']`:
    paths of modules from the outside in, then the operator. Returns "" for any other
    text.
    """
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    if not isinstance(scopes, list) or len(scopes) < 2:
        return ""
    return str(scopes[-2])


def _from_namespace(text: str) -> str:
    """
    Returns the scope from a text such as `: Model/encoder: Encoder/encoder.0:
    Linear/linear: aten.linear`. Each part is the path of a module and its class.
    Returns "" if the text names no module.
    """
    parts = [part.partition(":")[0].strip() for part in text.split("/")]
    return parts[-2] if len(parts) > 1 else ""


def _from_name(name: str) -> str:
    """
    Returns the scope from a name such as `/encoder/layer.0/fc/Gemm`, with one part per
    module. A module in a Sequential repeats the name of the Sequential:
    `/encoder/layers/layers.0/Gemm`. Returns "" for any other name.
    """
    if not name.startswith("/"):
        return ""
    path: list[str] = []
    previous = ""
    for part in name.split("/")[1:-1]:
        repeated = f"{previous}." if previous else ""
        path.append(part.removeprefix(repeated) if repeated else part)
        previous = part
    return ".".join(p for p in path if p)
