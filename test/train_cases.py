"""A case or more for every op of the `train` dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sharding_harness import Array, Case
from xdsl.ir import Operation

from distir.dialects.train_ops.losses import CrossEntropyGradOp, CrossEntropyOp

_rng = np.random.default_rng(11)


def real(*shape: int, dtype: Any = np.float32) -> Array:
    """Normally distributed numbers."""
    return _rng.standard_normal(shape).astype(dtype)


def positive(*shape: int, dtype: Any = np.float32) -> Array:
    """Numbers between a half and one."""
    return _rng.uniform(0.5, 1.0, shape).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
    """Whole numbers, `high` excluded."""
    return _rng.integers(low, high, shape).astype(dtype)


def scalar(value: Any, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


CASES: list[Case] = []


def case(
    make: Callable[..., Operation], *inputs: Array, label: str = "", **options: Any
):
    """A case of the op that `make` builds from its operands and these options."""
    CASES.append(
        Case(
            getattr(make, "name", make.__name__),
            inputs,
            options,
            label=label or ",".join(f"{k}={v}" for k, v in options.items()),
            make=lambda operands: make(*operands, **options),
        )
    )


_labels = integers(0, 6, 4, 12)
_padded = np.where(_rng.random((4, 12)) < 0.3, -100, _labels)
for _options in ({}, {"divisor": 48}, {"divisor": 48, "ignore_index": -100}):
    _some = _padded if "ignore_index" in _options else _labels
    case(CrossEntropyOp, real(4, 12, 6), _some, **_options)
    case(CrossEntropyGradOp, scalar(0.5), real(4, 12, 6), _some, **_options)
case(CrossEntropyOp, real(12, 6, dtype=np.float16), integers(0, 6, 12, dtype=np.int32))
case(
    CrossEntropyGradOp,
    scalar(2),
    real(12, 6, dtype=np.float16),
    integers(0, 6, 12, dtype=np.int32),
)
