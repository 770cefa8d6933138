"""Random programs: of any ops under random layouts, and small models to be trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from fuzz.annotations import Annotator, declare, random_meshes
from fuzz.catalogue import STEPS, FuzzBuilder, values_of
from hypothesis import strategies as st
from support.random_programs import Draw, build
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from distir.passes.partition import PartitionPass
from distir.sharding.verification import verify_distribution

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Program:
    """A sequential program and values for its arguments."""

    module: ModuleOp
    arguments: list[Array]


def any_program(draw: Draw, max_ops: int = 10) -> Program:
    """A random program of any ops, with functions that may be called several times."""
    shape = (draw(st.sampled_from([4, 6, 8])), 4, draw(st.sampled_from([4, 6, 8])))
    functions: list[FuncOp] = []
    # Arguments with values of their own are those of the entry function only.
    plain = STEPS[: len(STEPS) // 2]
    for i in range(draw(st.integers(0, 2))):
        builder = FuzzBuilder(draw, list(functions))
        functions.append(build(draw, builder, f"f{i}", shape, 5, plain))
    builder = FuzzBuilder(draw, functions)
    main = build(draw, builder, "main", shape, max_ops, STEPS)
    module = ModuleOp([*functions, main])
    module.verify()
    seed = draw(st.integers(0, 3))
    return Program(module, values_of(module, builder.given, seed))


def distributed(draw: Draw, program: Program) -> ModuleOp:
    """The program under random layouts, with the communication that they need."""
    module = program.module.clone()
    meshes = random_meshes(draw)
    declare(module, meshes)
    Annotator(draw, meshes).module(module)
    PartitionPass().apply(Context(), module)
    module.verify()
    verify_distribution(module)
    return module
