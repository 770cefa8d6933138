"""Recognises groups of ONNX ops that are one PyTorch call."""

from xdsl.dialects.builtin import ModuleOp


def fuse(module: ModuleOp) -> None:
    """Replaces such groups in a per-rank program."""
