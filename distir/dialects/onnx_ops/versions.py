"""The versions of the ONNX standard's operators in the `onnx` dialect."""

from onnx import helper

OPSET = 28
"""The opset whose operators this dialect holds; the importer converts to it."""

DOMAIN_VERSIONS: dict[str, int] = {
    "": OPSET,
    "ai.onnx.ml": 5,
    "ai.onnx.preview.training": 1,
}
"""The version of each domain of the standard."""

OPSET_IMPORTS = [helper.make_opsetid(d, v) for d, v in DOMAIN_VERSIONS.items()]
"""The same versions, as ONNX models declare them."""
