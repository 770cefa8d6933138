"""What ONNX nodes and models are called."""

from __future__ import annotations

from onnx import ModelProto, NodeProto

_STANDARD = ("", "ai.onnx")


def domain_of(node: NodeProto) -> str:
    """The operator's domain; the default domain has two spellings."""
    return "" if node.domain in _STANDARD else node.domain


def node_name(node: NodeProto) -> str:
    """A node as messages name it."""
    domain = domain_of(node) or "ai.onnx"
    name = node.name or (node.output[0] if node.output else "")
    return f"{node.op_type} {name!r} (domain {domain})"


def opset_versions(model: ModelProto) -> dict[str, int]:
    """The imported version of each domain."""
    return {
        "" if o.domain in _STANDARD else o.domain: o.version for o in model.opset_import
    }
