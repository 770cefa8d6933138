"""Names of ONNX nodes, values and models."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

_STANDARD = ("", "ai.onnx")

TRAIN_DOMAIN = "distir.train"
"""The domain of nodes that stand for ops of the `train` dialect."""


def domain_of(node: NodeProto) -> str:
    """Returns the operator's domain; the default domain has two spellings."""
    return "" if node.domain in _STANDARD else node.domain


def node_name(node: NodeProto) -> str:
    """Returns a node's name for messages."""
    domain = domain_of(node) or "ai.onnx"
    name = node.name or (node.output[0] if node.output else "")
    return f"{node.op_type} {name!r} (domain {domain})"


def opset_versions(model: ModelProto) -> dict[str, int]:
    """Returns the imported version of each domain."""
    return {
        "" if o.domain in _STANDARD else o.domain: o.version for o in model.opset_import
    }


def value_infos(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """Returns what the model itself says about its intermediate values and results."""
    return {v.name: v for v in [*graph.value_info, *graph.output]}
