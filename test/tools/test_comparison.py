"""What counts as a difference between the results of two programs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from distir.tools.comparison import last_place


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [1.0, 0.75, 3.0, 1e-3])
def test_unit_in_the_last_place(dtype: type, value: float) -> None:
    values = np.array([0.0, -value, np.inf, np.nan], dtype)
    assert last_place(values) == float(np.spacing(dtype(value)))


def test_unit_in_the_last_place_of_other_floats() -> None:
    assert last_place(np.array([1.0], ml_dtypes.bfloat16)) == 2**-7
    assert last_place(np.array([1.5], ml_dtypes.float8_e4m3fn)) == 2**-3
    assert last_place(np.zeros(3, np.float32)) == 0
