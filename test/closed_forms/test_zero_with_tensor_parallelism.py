"""
Bytes that a step sends under ZeRO and tensor parallelism together: stages 1 and 2 as many as
data parallelism alone, stage 3 half as many again (Rajbhandari et al. 2020, section 7), of
the parts of parameters that tensor parallelism leaves on a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
from closed_forms.towers import bytes_sent, distributed, on_each_device
from support.pipelines import arguments_of, assert_equal_results
from support.thoroughness import chosen, each_once
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType

from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.frontends.models.basic import build_gpt
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.planning.annotations import read_notes
from distir.program import argument_roles, entry_function
from distir.sharding.layout import local_shape
from distir.sharding.mesh import meshes

DEGREES = [(2, 2), (4, 2), (2, 4), (8, 8)]
ODD_DEGREES = [(3, 1), (5, 1), (3, 2), (5, 8)]


@functools.cache
def step(dtype: str = "bf16", gradient_dtype: str = "parameter") -> ModuleOp:
    """The training step of a small GPT; every size is a multiple of 64."""
    module = build_gpt(2, 64, 8, 128, 8, 64, dtype)
    DifferentiatePass(gradient_dtype=gradient_dtype).apply(Context(), module)
    return module


@functools.cache
def large_step() -> ModuleOp:
    """That of a GPT of width 8192, with a large vocabulary."""
    module = build_gpt(2, 8192, 64, 131072, 64, 4096, "bf16")
    DifferentiatePass().apply(Context(), module)
    return module


def kept(module: ModuleOp, role: str) -> int:
    """Bytes of the arguments of a role on a device."""
    function, known = entry_function(module), meshes(module)
    found = 0.0
    for arg, own in zip(
        function.body.block.args, argument_roles(function), strict=True
    ):
        layout = layout_of(arg)
        assert layout is not None and isinstance(arg.type, TensorType)
        local = local_shape(arg.type.get_shape(), layout, known[layout.mesh])
        if own == role:
            found += prod(local) * bytes_per_element(arg.type.element_type)
    return int(found)


@dataclass(frozen=True)
class Measured:
    """
    What each device sends and keeps in a distributed step, and how many arguments it has.
    """

    sent: float
    parameters: int
    states: int
    arguments: int


@functools.cache
def measured(step: Callable[[], ModuleOp], **options: Any) -> Measured:
    """What a step under these options of `distribute` sends and keeps."""
    module = distributed(step().clone(), **options)
    return Measured(
        on_each_device(bytes_sent, module),
        kept(module, "parameter"),
        kept(module, "state"),
        len(entry_function(module).args),
    )


def sent_and_closed_form(
    step: Callable[[], ModuleOp], zero: int, **options: Any
) -> tuple[float, float]:
    """What a device sends in a step under a stage of ZeRO, and what it may."""
    plain, d = measured(step, **options), options["d"]
    half = (d - 1) / d * plain.parameters
    expected = plain.sent + (half if zero == 3 else 0)
    return measured(step, **options, zero=zero).sent, expected


@pytest.mark.parametrize(
    ("d", "t", "zero", "sequence_parallel"),
    chosen(
        [
            (d, t, zero, sequence)
            for zero in (1, 2, 3)
            for sequence in (False, True)
            for d, t in DEGREES
        ],
        [(2, 2, 2, False), (2, 4, 3, True), (8, 8, 1, True)],
    ),
)
def test_small_steps_send_no_more(
    d: int, t: int, zero: int, sequence_parallel: bool
) -> None:
    options = {"d": d, "t": t, "sequence_parallel": sequence_parallel}
    sent, expected = sent_and_closed_form(step, zero, **options)
    # In stage 3 what no gradient needs is gathered once.
    assert (0.9 if zero == 3 else 1) * expected <= sent <= expected


@pytest.mark.parametrize("zero", chosen([1, 2, 3], [3]))
def test_a_large_step_on_512_devices(zero: int) -> None:
    sent, expected = sent_and_closed_form(large_step, zero, d=64, t=8)
    assert (0.9 if zero == 3 else 1) * expected <= sent <= 1.0001 * expected


@pytest.mark.parametrize(("d", "t"), chosen(DEGREES, [(8, 8)]))
def test_states_are_split_over_all_devices(d: int, t: int) -> None:
    """But for the norms' and biases', which tensor parallelism keeps or splits in runs."""
    states = measured(step, d=1, t=1).states
    split = measured(step, d=d, t=t, zero=1).states
    small = 3 * 4 * (2 * (3 * 64 + 6 * 64) + 2 * 64 + 64 * 64)
    assert states / (d * t) <= split < states / (d * t) + small


@functools.cache
def clipped_step() -> tuple[ModuleOp, list[Any], list[Any]]:
    """A step that clips its gradients, arguments of it, and its results for them."""
    module = build_gpt(1, 16, 4, 32, 8, 8)
    DifferentiatePass(clip=1.0).apply(Context(), module)
    arguments = arguments_of(module)
    return module, arguments, run_program(module, arguments)


@pytest.mark.parametrize(
    ("zero", "options"),
    each_once([1, 2, 3], [{"d": 2, "t": 2}, {"d": 2, "t": 4, "k": 2}]),
)
def test_results_stay(zero: int, options: dict[str, int]) -> None:
    module, arguments, expected = clipped_step()
    split = distributed(module.clone(), **options, zero=zero)
    assert_equal_results(split, expected, run_program(split, arguments), 1e-4)


def test_many_tensors_that_are_flat_are_one_note() -> None:
    """Biases that tensor parallelism splits in runs: three states for each of two layers."""
    notes = read_notes(distributed(step().clone(), d=4, t=2, zero=1))
    (note,) = [note for note in notes if note.startswith("zero: ")]
    assert "c_attn.bias" in note and "and 2 more: stored flat" in note


@functools.cache
def odd_step() -> ModuleOp:
    """The step of a small GPT on 15 sequences; 3 divides some of its sizes, 5 none."""
    module = build_gpt(2, 64, 8, 128, 15, 64, "bf16")
    DifferentiatePass().apply(Context(), module)
    return module


@pytest.mark.parametrize(
    ("d", "t", "zero"),
    chosen(
        [(*d_t, z) for d_t in ODD_DEGREES for z in (1, 2, 3)],
        [(5, 1, 3), (3, 2, 2)],
    ),
)
def test_degrees_that_divide_nothing(d: int, t: int, zero: int) -> None:
    """What is kept and sent is that of flat tensors: some zeros more than the closed forms."""
    sent, expected = sent_and_closed_form(odd_step, zero, d=d, t=t)
    assert 0.98 * expected <= sent <= 1.01 * expected
    plain, split = (measured(odd_step, d=d, t=t, **z) for z in ({}, {"zero": zero}))
    padding = 4 * split.arguments
    assert plain.states / d <= split.states < plain.states / d + padding
    if zero == 3:
        assert plain.parameters / d <= split.parameters < plain.parameters / d + padding


@functools.cache
def wide_step() -> ModuleOp:
    """The step of a layer of width 4096 on 48 sequences."""
    module = build_gpt(1, 4096, 32, 50304, 48, 64, "bf16")
    DifferentiatePass().apply(Context(), module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_width_that_48_devices_do_not_divide(zero: int) -> None:
    sent, expected = sent_and_closed_form(wide_step, zero, d=48)
    assert 0.98 * expected <= sent <= 1.0001 * expected
