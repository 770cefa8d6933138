"""The versions of the ONNX standard that the `onnx` dialect follows."""

from onnx import helper

OPSET = 28
"""The opset of this dialect's operators. The importer converts models to it."""

DOMAIN_VERSIONS: dict[str, int] = {
    "": OPSET,
    "ai.onnx.ml": 5,
    "ai.onnx.preview.training": 1,
}
"""The version of each domain of the ONNX standard, by domain."""

OPSET_IMPORTS = [helper.make_opsetid(d, v) for d, v in DOMAIN_VERSIONS.items()]
"""The versions in `DOMAIN_VERSIONS`, in the form in which ONNX models declare them."""
