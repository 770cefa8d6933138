"""Gradients of recurrent layers."""

from __future__ import annotations

from typing import Any

import pytest
from gradients.harness import GradientCase, backward_program, check, integers, normal
from support.thoroughness import sampled

from distir.errors import DistIRError

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, FEATURES, HIDDEN = 3, 2, 4, 3


def recurrent(
    kind: str, states: bool = True, bias: bool = True, lengths: bool = False, **how: Any
) -> GradientCase:
    """A layer whose results are all used."""
    count = 2 if how.get("direction") == "bidirectional" else 1
    rows = GATES[kind] * HIDDEN
    first = how.get("layout", 0)
    x = (BATCH, STEPS) if first else (STEPS, BATCH)
    state = (BATCH, count, HIDDEN) if first else (count, BATCH, HIDDEN)
    inputs: list[Any] = [
        normal(*x, FEATURES),
        normal(count, rows, FEATURES, seed=1),
        normal(count, rows, HIDDEN, seed=2),
        normal(count, 2 * rows, seed=3) if bias else None,
        integers([STEPS, STEPS - 1]).astype("int32") if lengths else None,
    ]
    results = 3 if kind == "LSTM" else 2
    if states:
        inputs += [normal(*state, seed=4 + i) for i in range(results - 1)]
    while inputs[-1] is None:
        inputs.pop()
    return GradientCase(
        kind, inputs, {"hidden_size": HIDDEN, **how}, results=results, label=f"{kind}{how}{states}"
    )  # fmt: skip


CASES = [
    case
    for kind in GATES
    for case in (
        recurrent(kind),
        recurrent(kind, states=False, bias=False, direction="reverse"),
        recurrent(kind, states=False, direction="bidirectional"),
    )
] + [
    recurrent("GRU", linear_before_reset=1),
    recurrent("GRU", linear_before_reset=1, direction="bidirectional"),
]


@pytest.mark.parametrize("case", sampled(CASES, 2), ids=str)
def test_gradients(case: GradientCase) -> None:
    check(case)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (recurrent("LSTM", lengths=True), "with sequences of several lengths"),
        (recurrent("LSTM", input_forget=1), "with coupled input and forget gates"),
        (recurrent("GRU", clip=3.0), "with a clip"),
    ],
)
def test_what_has_no_gradient(case: GradientCase, told: str) -> None:
    with pytest.raises(DistIRError, match=told):
        backward_program(case, frozenset([0]))
