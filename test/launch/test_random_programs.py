"""Random programs: what is written in PyTorch computes what the program says."""

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lowering_cases import run_here
from support.random_programs import arguments_of, programs
from support.thoroughness import tries
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.interpreters.reference import run_program
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.passes.distribute import DistributePass
from distir.program import argument_names, entry_function


def assert_close(
    actual: Sequence[npt.NDArray[Any]], expected: Sequence[npt.NDArray[Any]]
) -> None:
    """The same, up to the rounding of the largest numbers."""
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        largest = float(np.max(np.abs(b), initial=1e-3))
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * largest)


@settings(
    max_examples=tries(150), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(programs())
def test_one_process(module: ModuleOp) -> None:
    arguments = arguments_of(module)
    assert_close(run_here(module, arguments), run_program(module, arguments))


@settings(
    max_examples=tries(40), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(programs(), st.sampled_from([(2, 1), (1, 2), (2, 2), (1, 4)]))
def test_real_processes(
    spawner: Spawner, module: ModuleOp, degrees: tuple[int, int]
) -> None:
    arguments = arguments_of(module)
    distributed = module.clone()
    DistributePass(d=degrees[0], t=degrees[1]).apply(Context(), distributed)
    names = argument_names(entry_function(distributed))
    with tempfile.TemporaryDirectory() as folder:
        write_package(distributed, folder)
        inputs = dict(zip(names, arguments, strict=True))
        results = run_package(folder, inputs=inputs, timeout_s=60, spawner=spawner)
    assert_close(list(results.values()), run_program(module, arguments))
