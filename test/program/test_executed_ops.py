"""Programs whose runs are exponentially longer than their text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.programs import parse
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.interpreters.types import infer_types
from distir.passes.distribute import DistributePass
from distir.passes.inline_calls import inline_calls


def doubling(count: int) -> ModuleOp:
    """A program of `count` functions that each call the one before twice."""
    functions = [
        """func.func private @f0(%x: tensor<4xf32>) -> tensor<4xf32> {
      %y = onnx.Neg(%x) : (tensor<4xf32>) -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }"""
    ]
    functions += [
        f"""func.func {"private @f" + str(i) if i < count - 1 else "@main"}(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = func.call @f{i - 1}(%x) : (tensor<4xf32>) -> tensor<4xf32>
      %1 = func.call @f{i - 1}(%0) : (tensor<4xf32>) -> tensor<4xf32>
      func.return %1 : tensor<4xf32>
    }}"""
        for i in range(1, count)
    ]
    return parse("\n".join(functions))


def run(module: ModuleOp) -> None:
    run_program(module, [np.ones(4, np.float32)])


def distribute(module: ModuleOp) -> None:
    DistributePass(d=2, cluster="cpu").apply(Context(), module)


@pytest.mark.parametrize("follow", [run, infer_types, inline_calls, distribute])
def test_what_follows_each_call_refuses_runs_that_would_not_end(
    follow: Callable[[ModuleOp], object],
) -> None:
    follow(doubling(6))
    with pytest.raises(DistIRError, match=r"@f21 executes 10,485,757 ops"):
        follow(doubling(30))
