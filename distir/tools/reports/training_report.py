"""Reports what an imported training step trains."""

from __future__ import annotations

from math import prod

from distir.dialects.dist_attributes import FROZEN
from distir.dialects.tensors import shape_of
from distir.errors import listed
from distir.frontends.imported_model import ImportedModel
from distir.program import (
    argument_attributes,
    argument_roles,
    entry_function,
    parameters_of_gradients,
    updated_arguments,
)
from distir.tools.reports.reporting import note


def report_training(imported: ImportedModel) -> None:
    """
    Prints one line on the loss and the optimizer, and a note if the model's file does not
    say them.
    """
    function = entry_function(imported.module)
    reached = {*updated_arguments(function).values()}
    reached |= {*parameters_of_gradients(function).values()}
    counts = {"trained": 0, "frozen": 0, "unreached": 0, "constant": 0}
    elements = 0
    for arg, role, attributes in zip(
        function.body.block.args,
        argument_roles(function),
        argument_attributes(function),
        strict=True,
    ):
        if role == "constant":
            counts["constant"] += 1
        elif role == "parameter" and FROZEN in attributes:
            counts["frozen"] += 1
        elif role == "parameter" and arg.index not in reached:
            counts["unreached"] += 1
        elif role == "parameter":
            counts["trained"] += 1
            elements += prod(shape_of(arg.type))
    print(
        f"trained: {counts['trained']} parameters of {elements:,} elements; not trained: "
        f"{counts['frozen']} frozen, {counts['unreached']} that the loss does not depend "
        f"on, {counts['constant']} constants"
    )
    if imported.guessed:
        note(
            f"the file does not say what its tensors are, nor where gradients stop "
            f"(detach); {len(imported.guessed)} are trained because operators use them "
            f"as weights ({listed(imported.guessed)}); --frozen and --trainable say "
            f"otherwise"
        )
