"""The gradient rules of ONNX and train ops, one file per family."""

from distir.gradients.rules import (
    arithmetic as arithmetic,
)
