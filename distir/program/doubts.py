"""
Reasons why a part of an imported model cannot be trained in its present form. The
attribute `dist.doubt` holds such a reason as a keyword; this module explains the
keywords to users.
"""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN = "unknown"
FOLDED = "folded"
TRACED = "traced"
DETACHED = "detached"

_EXPORT = "export with torch.onnx.export(..., dynamo=True, optimize=False)"
_OPTIONS = "--trainable or --frozen (trainable= and frozen= in Python)"

_REASONS: Mapping[str, str] = {
    UNKNOWN: (
        "the model's file does not say whether this is a parameter or fixed; say so with "
        f"{_OPTIONS}, or, from PyTorch, {_EXPORT}"
    ),
    FOLDED: (
        "PyTorch's exporter merged, folded or transposed parameters here, so that "
        f"training it is not what PyTorch does; {_EXPORT}, or say with {_OPTIONS} that it "
        "is to be trained, or not, as it is"
    ),
    TRACED: (
        "PyTorch's older exporter folded or transposed parameters here, so that training "
        f"it is not what PyTorch does; {_EXPORT} or with do_constant_folding=False and "
        f"training=torch.onnx.TrainingMode.PRESERVE, or say with {_OPTIONS} that it is to "
        "be trained, or not, as it is"
    ),
    DETACHED: (
        "PyTorch's exporter removed a detach() here, so that its gradients are not those "
        f"of PyTorch; {_EXPORT}"
    ),
}


def reason(doubt: str) -> str:
    """
    Returns an explanation of the keyword `doubt`, with advice. A text that is not a
    known keyword is returned unchanged.
    """
    return _REASONS.get(doubt, doubt)
