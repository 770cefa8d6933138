"""ONNX's own tests of single operators, through our importer and the torch lowering."""

import numpy as np
import pytest
from support.lowering_cases import run_model
from support.onnx_node_cases import data_sets, node_cases, run_all, tried_cases

# Expected values that hold NumPy's rounding errors beyond the tolerance of their tests: a
# softmax of half precision rounded at each step, where PyTorch rounds once; a transform
# with 2e-7 in the place of 0. Allowed here: one unit in the last place of the largest
# expected element.
NUMPY_ROUNDING = (
    "test_attention_4d_causal_fp16_expanded",
    "test_dft_inverse",
    "test_dft_inverse_opset19",
)


def test_node_tests() -> None:
    assert len(node_cases()) == 1884
    tried = tried_cases()
    outcomes = run_all(run_model, tried)
    print(f"{len(outcomes.passed)} of {len(tried)} pass")
    assert outcomes.failed.keys() <= set(NUMPY_ROUNDING)
    refusals = ("has no torch lowering", "have no torch lowering", "the model uses")
    for name, message in outcomes.refused.items():
        assert any(text in message for text in refusals), name
    assert len(outcomes.passed) >= 0.952 * len(tried)


@pytest.mark.parametrize("name", NUMPY_ROUNDING)
def test_as_close_as_the_expected_values_allow(name: str) -> None:
    (case,) = [case for case in node_cases() if case.name == name]
    for inputs, expected in data_sets(case):
        for result, wanted in zip(run_model(case.model, inputs), expected, strict=True):
            unit = np.spacing(np.abs(wanted).max())
            error = np.abs(result.astype(np.float64) - wanted.astype(np.float64)).max()
            assert result.dtype == wanted.dtype and error <= unit
