"""Programs of several imported entries: which weights they share."""

from __future__ import annotations

import numpy as np
import pytest
from support.programs import parse
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel, joined_models
from distir.interpreters.reference import run_program
from distir.program import Program
from distir.program.entries import one_entry

W = np.array([2, 3], np.float32)


def program(size: int, role: str = "constant") -> ModuleOp:
    """x * w + c, where only `c` may be long."""
    return parse(
        f"""
        func.func @main(%x: tensor<2xf32> {{dist.role = "input", dist.name = "x"}},
            %w: tensor<2xf32> {{dist.role = "parameter", dist.name = "w"}},
            %c: tensor<{size}xf32> {{dist.role = "{role}", dist.name = "c"}})
            -> (tensor<2xf32> {{dist.name = "y"}}) {{
          %p = onnx.Mul(%x, %w) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
          %y = onnx.Add(%p, %c) : (tensor<2xf32>, tensor<{size}xf32>) -> tensor<2xf32>
          func.return %y : tensor<2xf32>
        }}"""
    )


def joined(prefill: list[float], decode: list[float], **roles: str) -> ImportedModel:
    values = {"prefill": prefill, "decode": decode}
    return joined_models(
        {
            name: ImportedModel(
                program(len(c), **roles), {"w": W, "c": np.array(c, np.float32)}
            )
            for name, c in values.items()
        }
    )


@pytest.mark.parametrize(
    ("prefill", "decode", "names"),
    [
        ([1, 2], [1, 2], {"w", "c"}),
        ([1, 2], [1, 3], {"w", "c", "c_1"}),
        ([1, 2], [4], {"w", "c", "c_1"}),
        ([0.0, 1], [-0.0, 1], {"w", "c", "c_1"}),
        ([np.nan, 1], [np.nan, 1], {"w", "c"}),
    ],
)
def test_each_entry_keeps_the_values_of_its_constants(
    prefill: list[float], decode: list[float], names: set[str]
) -> None:
    model = joined(prefill, decode)
    assert set(model.weights) == names and not model.valueless
    x = np.ones(2, np.float32)
    for name, values in (("prefill", prefill), ("decode", decode)):
        entry = one_entry(model.module, name)
        known = {"x": x, **model.weights}
        (y,) = run_program(entry, [known[a.name] for a in Program(entry).arguments])
        wanted = W + np.array(values, np.float32)
        np.testing.assert_array_equal(y, wanted)


def test_parameters_of_different_types_are_refused() -> None:
    with pytest.raises(DistIRError, match="argument 'c' is parameter"):
        joined([1, 2], [4], role="parameter")
