"""The loss and the labels of a program imported from a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distir.dialects.dist_attributes import GRADIENT_OF
from distir.errors import DistIRError
from distir.gradients.options import IGNORED_LABEL, OUTSIDE
from distir.parallel.losses import Loss

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def arguments_with(module: ModuleOp, wanted: str) -> list[str]:
    """Returns the names of the program's arguments with the role `wanted`."""
    from distir.program import Program

    return [each.name for each in Program(module).arguments if each.role == wanted]


def given_labels(module: ModuleOp) -> list[str]:
    """
    Returns the names of the labels that a caller gives with the inputs: the arguments
    with the role "label", except the gradients of results.
    """
    from distir.program import Program

    return [
        each.name
        for each in Program(module).arguments
        if each.role == "label" and GRADIENT_OF not in each.attributes
    ]


def kind_of_loss(loss: Loss, program: ModuleOp) -> str:
    """
    Returns the kind of loss with which a forward program is differentiated: `loss`
    itself if it is a name. Without a loss, returns `OUTSIDE` (the caller computes the
    loss) if no result of `program` is a float scalar. Otherwise returns "none".
    """
    if isinstance(loss, str):
        return loss
    if loss is None and _scalar_result(program) is None:
        return OUTSIDE
    return "none"


def loss_result(module: ModuleOp) -> int:
    """
    Returns the index of the result that is the loss: the first float scalar. Raises
    DistIRError if no result is a float scalar.
    """
    found = _scalar_result(module)
    if found is None:
        raise DistIRError(
            "parallelize: the loss gives no scalar; give a function of the output and the "
            "labels that does"
        )
    return found


def _scalar_result(module: ModuleOp) -> int | None:
    """
    Returns the index of the first result that is a float scalar, or None if there is no
    such result.
    """
    from xdsl.dialects.builtin import AnyFloat, TensorType

    from distir.program import entry_function

    for i, type_ in enumerate(entry_function(module).function_type.outputs.data):
        if (
            isinstance(type_, TensorType)
            and not type_.get_shape()
            and isinstance(type_.element_type, AnyFloat)
        ):
            return i
    return None


def ignored_label(loss: str | None) -> int | None:
    """
    Returns the label whose positions `loss` leaves out, or None if `loss` leaves out no
    label.
    """
    return IGNORED_LABEL if loss == "cross_entropy" else None
