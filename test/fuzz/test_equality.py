"""What the fuzzers call rounding: results in few bits, and mistakes as small."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.equality import Different, assert_same
from support.pipelines import arguments_of, distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass


def step() -> ModuleOp:
    """The training step of a GPT in 16 bits, with products in 8 bits."""
    module = build_gpt(1, 8, 4, 12, 4, 4, "bf16")
    train = DifferentiatePass(learning_rate=0.1)
    for one in (Float8Pass("row"), train, ExpandFloat8Pass()):
        one.apply(Context(), module)
    return module


def test_rounding_of_16_and_8_bits_is_no_finding() -> None:
    """States are in f32, but no nearer than the 16 bits of the gradients they come from."""
    module = step()
    arguments = arguments_of(module)
    expected = run_program(module, arguments)
    found = run_program(distributed(module, t=3), arguments)
    assert not assert_same(module, arguments, expected, found)


@pytest.mark.parametrize("bits", [16, 32])
def test_a_mistake_beside_rounding_is_one(bits: int) -> None:
    """In a result in few bits, and where another result is ill-conditioned."""
    module = step()
    arguments = arguments_of(module)
    expected = run_program(module, arguments)
    found = run_program(distributed(module, t=3), arguments)
    index = next(
        i for i, a in enumerate(expected) if a.ndim == 2 and a.itemsize * 8 == bits
    )
    found[index] = (found[index].astype(np.float64) * 1.5).astype(found[index].dtype)
    with pytest.raises(Different, match=f"result {index}:"):
        assert_same(module, arguments, expected, found)
