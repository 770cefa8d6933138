"""Reports which parameters an imported training step trains."""

from __future__ import annotations

from math import prod

from distir.dialects.dist_attributes import FROZEN
from distir.dialects.tensors import shape_of
from distir.errors import listed
from distir.frontends.imported_model import ImportedModel
from distir.program import Program
from distir.tools.reports.reporting import note


def report_training(imported: ImportedModel) -> None:
    """
    Prints the numbers of trained and of frozen parameters and of constants. If the
    model's file does not declare its parameters, a note names the tensors that the
    import chose.
    """
    program = Program(imported.module)
    reached = {*program.links.values()}
    counts = {"trained": 0, "frozen": 0, "unreached": 0, "constant": 0}
    elements = 0
    for argument in program.arguments:
        role = argument.role
        if role == "constant":
            counts["constant"] += 1
        elif role == "parameter" and FROZEN in argument.attributes:
            counts["frozen"] += 1
        elif role == "parameter" and argument.index not in reached:
            counts["unreached"] += 1
        elif role == "parameter":
            counts["trained"] += 1
            elements += prod(shape_of(argument.type))
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
