"""
`distir schedule --verify`: checks kernels and the whole program, and prints the
results.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.ir import SSAValue

    from distir.scheduling.kernel_verification import VerifiedKernel
    from distir.tools.comparison import OutputDifference
    from distir.tools.files import Arrays

MOST_ELEMENTS = 1 << 28
"""
The largest number of array elements in all values of a program that is run for
comparison.
"""

CAST_TOLERANCE = 2e-2
"""The relative difference that is allowed if a schedule casts values to 16 bits."""


@dataclass(frozen=True)
class ScheduleCheck:
    """
    The results of verifying a schedule. `kernels` are the results for kernels.
    `outputs` has the differences between the outputs of the original and the scheduled
    program. `is_step` tells whether training steps of the two programs were compared.
    `not_run` is the reason why the whole programs were not run, or empty.
    """

    kernels: Sequence[VerifiedKernel]
    outputs: Sequence[OutputDifference] = ()
    is_step: bool = False
    not_run: str = ""


def verify_schedule(
    before: ModuleOp, after: ModuleOp, is_cast: bool, arguments: argparse.Namespace
) -> None:
    """
    Verifies that a schedule keeps the results of a program, and prints tables. `before`
    is the program without the schedule, and `after` with it. `is_cast` tells whether
    the schedule casts to 16 bits. Raises DistIRError if the programs differ.
    """
    from distir.tools.files import program_weights

    print_check(
        checked_schedule(
            before,
            after,
            is_cast,
            arguments,
            lambda module: program_weights(module, arguments.program),
        )
    )


def checked_schedule(
    before: ModuleOp,
    after: ModuleOp,
    is_cast: bool,
    arguments: argparse.Namespace,
    weights: Callable[[ModuleOp], Arrays],
) -> ScheduleCheck:
    """
    Verifies that a schedule keeps the results of a program, and returns the
    differences. `before` is the program without the schedule, and `after` with it.

    Each kernel is compared with its reference implementation. Then the two programs are
    compared on random inputs. With `--training` in the arguments, training steps of the
    two programs are compared by their losses and updated parameters. `is_cast` tells
    whether the schedule casts to 16 bits. `weights` returns the weights of a program.
    Raises DistIRError if the programs differ.
    """
    from distir.scheduling.kernel_verification import verify_kernels
    from distir.tools.reports.reporting import progress

    with progress("verifying kernels"):
        kernels = verify_kernels(after, arguments.kernels, arguments.timeout)
    size = elements_of(before)
    if size is None:
        return ScheduleCheck(
            kernels,
            not_run="it has values of unknown size; run "
            f"`distir-opt {arguments.program} -p fold-shapes` first, and schedule its output",
        )
    if size > MOST_ELEMENTS:
        return ScheduleCheck(
            kernels,
            not_run=f"its values have {size:,} elements "
            f"({MOST_ELEMENTS:,} at most); verify the schedule on a model with fewer layers or smaller inputs",
        )
    return _verified_program(before, after, is_cast, arguments, weights, kernels)


def print_check(check: ScheduleCheck) -> None:
    """Prints the results of verifying a schedule as tables."""
    from distir.tools.reports.reporting import note, table

    if check.kernels:
        rows = [
            [
                f"@{each.kernel.symbol}",
                each.kernel.implementation.data,
                each.kernel.rule.data,
                f"{each.difference:.1e}",
                ""
                if each.gradient_difference is None
                else f"{each.gradient_difference:.1e}",
            ]
            for each in check.kernels
        ]
        headings = ["kernel", "implementation", "rule", "difference", "of the gradient"]
        table(headings, rows)
    if check.not_run:
        note(f"the whole program was not run: {check.not_run}")
        return
    worst = max(check.outputs, key=lambda each: each.relative, default=None)
    rows = [
        [
            "a training step" if check.is_step else "the whole program",
            str(len(check.outputs)),
            "" if worst is None else f"{worst.relative:.1e}",
            "" if worst is None else worst.name,
        ]
    ]
    table(["compared", "outputs", "largest difference", "of"], rows)


def _verified_program(
    before: ModuleOp,
    after: ModuleOp,
    is_cast: bool,
    arguments: argparse.Namespace,
    weights: Callable[[ModuleOp], Arrays],
    kernels: Sequence[VerifiedKernel],
) -> ScheduleCheck:
    """
    Compares the whole programs `before` and `after` a schedule, or training steps of
    these. Raises DistIRError if their results differ.
    """
    from distir.errors import DistIRError
    from distir.tools.arguments.program import whole_arguments
    from distir.tools.arguments.training import differentiate_pass
    from distir.tools.comparison import compare
    from distir.tools.files import apply_passes
    from distir.transforms.dropout import train_dropouts

    differentiate = differentiate_pass(arguments)
    programs = before.clone(), after.clone()
    for module in programs:
        if differentiate is not None:
            apply_passes(module, differentiate)
        else:
            # Both have to drop the same elements.
            train_dropouts(module, arguments.seed, attention=False)
    path, known = arguments.program, weights(before)
    values = whole_arguments(programs[0], path, known, {}, arguments.seed)
    values |= _large_parameters(programs[0], known, values)
    paths = path, f"{path} as {arguments.script} schedules it"
    allowed = CAST_TOLERANCE if is_cast else None
    found = compare(programs, paths, values, allowed, by_change=True)
    wrong = [each for each in found if not each.within]
    if wrong:
        shown = ", ".join(f"{each.name!r} by {each.relative:.2g}" for each in wrong[:5])
        raise DistIRError(
            f"{paths[1]} does not compute what {path} does: {shown} differ, relative to the "
            f"largest magnitude (or 1), or to what a step changes ({wrong[0].tolerance:g} is allowed); find the line of the "
            f"script by leaving lines out"
        )
    return ScheduleCheck(kernels, found, differentiate is not None)


def _large_parameters(
    module: ModuleOp, weights: Arrays, values: Arrays
) -> dict[str, npt.NDArray[Any]]:
    """
    Returns random values for parameters without weights, so large that the outputs of
    layers have about the size of their inputs. With the small values of a new training,
    later layers and gradients would hardly influence the compared results.
    """
    from distir.program import Program

    found: dict[str, npt.NDArray[Any]] = {}
    for argument in Program(module).arguments:
        name, value = argument.name, values[argument.name]
        if (
            argument.role != "parameter"
            or name in weights
            or value.dtype.kind not in "fV"
        ):
            continue
        spread = float(np.std(value.astype(np.float64))) or 1.0
        inputs = prod(value.shape[:-1]) if value.ndim > 1 else 4
        found[name] = (value / (spread * inputs**0.5)).astype(value.dtype)
    return found


def elements_of(module: ModuleOp) -> int | None:
    """
    Returns the number of array elements in all values of a program. The values of a
    function are counted once for each call. Returns None if a size is unknown.
    """
    from xdsl.dialects.builtin import TensorType
    from xdsl.dialects.func import CallOp

    from distir.program import reachable_functions

    counts: dict[str, int] = {}
    total = 0
    *called, entry = reachable_functions(module)  # callees first
    for function in (*called, entry):
        ops = list(function.body.block.ops)
        values: list[SSAValue] = [value for op in ops for value in op.results]
        if function is entry:
            values += function.args
        shapes = [v.type.get_shape() for v in values if isinstance(v.type, TensorType)]
        if any(size < 0 for shape in shapes for size in shape):
            return None
        total = sum(map(prod, shapes)) + sum(
            counts[op.callee.string_value()] for op in ops if isinstance(op, CallOp)
        )
        counts[function.sym_name.data] = total
    return total
