"""
Single operators with extreme inputs: what the reference interpreter and the generated
package compute, next to PyTorch's own function and onnxruntime.

Where PyTorch and onnxruntime agree, both of ours must agree with them. Where they do not,
each of ours must be like one of them. Where neither has the operator for these types, ours
must agree with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fuzz.extremes import is_float
from fuzz.operator_samples import Sample, any_sample
from fuzz.oracles import Runtime, pytorch
from hypothesis import strategies as st
from support.lowering_cases import load_program, to_numpy, to_torch
from support.random_programs import Draw
from support.sharding_harness import Case, build, evaluate, typed
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Region

from distir.dialects.onnx_ops.op import OnnxOp
from distir.errors import DistIRError
from distir.lowering.emitter import NoLowering
from distir.lowering.program_source import program_source

EXAMPLES = 100
"""Of a round, each with several inputs for one operator."""

INPUTS = 4


class Wrong(AssertionError):
    """One of ours computes something else than it should."""


def prepare() -> None:
    torch.set_num_threads(1)
    from fuzz.catalogue import cases

    cases()


def case(draw: Draw) -> list[str]:
    """An operator with several inputs; for each of these, what came of it."""
    sample = any_sample(draw)
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    first = _given(sample, random)
    operator = Operator(sample, first)
    found: list[str] = []
    for trial in range(1 if sample.once else INPUTS):
        inputs = _given(sample, random) if trial else list(first)
        for i in sample.constants:
            inputs[i] = first[i]
        try:
            with np.errstate(all="ignore"):
                found.append(operator.judge(inputs))
        except BaseException as error:
            error.add_note(f"{sample.name} {dict(sample.attributes)}")
            error.add_note(f"on {_shown(inputs)} constants {sorted(sample.constants)}")
            raise
    return found


def _given(sample: Sample, random: np.random.Generator) -> list[Any]:
    """Inputs without those that are omitted at the end."""
    found: list[Any] = list(sample.inputs(random))
    while found[-1] is None:
        found.pop()
    return found


def _shown(inputs: Sequence[Any]) -> str:
    return "; ".join(
        "none" if a is None else f"{a.dtype}{list(a.shape)} {a.tolist()}"
        for a in inputs
    )


class Operator:
    """A sample as a program, in all the ways to run it."""

    def __init__(self, sample: Sample, first: Sequence[Any]) -> None:
        self.sample = sample
        name = sample.name if sample.make else sample.name.removeprefix("onnx.")
        case = Case(
            name,
            first,
            sample.attributes,
            sample.constants,
            sample.results,
            make=sample.make,
        )
        self.program: Any = None
        self.runtime: Runtime | None = None
        self.op, _ = build(case)
        given = [a for a in first if a is not None]
        try:
            with np.errstate(all="ignore"):
                results = evaluate(self.op, given)
        except DistIRError:
            return
        types = [typed(np.asarray(r)) for r in results]
        self.op, block = build(case, None, types)
        self.op.verify()
        block.add_op(ReturnOp(*self.op.results))
        signature = FunctionType.from_lists([a.type for a in block.args], types)
        self.module = ModuleOp([FuncOp("main", signature, Region(block))])
        if isinstance(self.op, OnnxOp):
            self.runtime = Runtime(self.op)
        try:
            program = load_program(program_source(self.module.clone()))
        except NoLowering:
            return
        (rank,) = program.RANKS
        self.files = program  # Its folder is there as long as the module is.
        self.program = rank.program({}, rank.numbers)

    def judge(self, inputs: Sequence[Any]) -> str:
        """What came of these inputs. Raises Wrong."""
        if self.program is None:
            return "refused"
        tolerance = self._tolerance(inputs)
        reference = evaluate(self.op, [a for a in inputs if a is not None])
        others: dict[str, Any] = {}
        if isinstance(self.op, OnnxOp):
            assert self.runtime is not None
            if self.sample.name not in SINGLE or all(map(_fits_single, inputs)):
                others["onnxruntime"] = self.runtime.run(inputs)
            others["PyTorch"] = pytorch(self.op, inputs)
        try:
            package = self._run(inputs)
        except ValueError as error:
            if "2**63" in str(error):  # PyTorch computes with those of int64 only
                return "refused"
            raise
        labels: set[str] = set()
        for i, ours in enumerate(zip(reference, package, strict=True)):
            known = {
                name: found[i]
                for name, found in others.items()
                if found is not None and i < len(found)
            }
            labels.add(self._judge(i, ours, known, tolerance))
        return max(labels)

    def _judge(
        self, i: int, ours: tuple[Any, Any], known: dict[str, Any], tolerance: float
    ) -> str:
        named = {"the reference": ours[0], "the package": ours[1]}
        if not known:
            if not self._same(*ours, tolerance):
                raise Wrong(f"result {i}: {_lined(named)}")
            return "alone"
        values = list(known.values())
        label = "agree" if len(known) == 2 else "one oracle"
        if len(known) == 2 and not self._same(values[0], values[1], tolerance):
            label = "oracles differ"
        for name, value in named.items():
            if not any(self._same(value, v, tolerance) for v in values):
                raise Wrong(f"result {i} of {name}: {_lined({**named, **known})}")
        return label

    def _same(self, a: Any, b: Any, tolerance: float) -> bool:
        single = self.sample.name in SINGLE
        return same(a, b, tolerance, is_single=single, roundings=self.sample.roundings)

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        given = [
            to_torch(a)
            for i, a in enumerate(inputs)
            if a is not None and i not in self.sample.constants
        ]
        with torch.inference_mode():
            results = self.program.main(*given)
        results = results if isinstance(results, tuple) else (results,)
        return [to_numpy(r) for r in results]

    def _tolerance(self, inputs: Sequence[Any]) -> float:
        """The absolute error that is allowed besides the relative one."""
        scale = 1.0
        if self.sample.sums:
            for a in inputs:
                if a is None or not is_float(a.dtype):
                    continue
                wide = np.abs(a.astype(np.float64))
                scale *= max(1.0, float(np.max(wide[np.isfinite(wide)], initial=0)))
        with np.errstate(all="ignore"):
            return scale * self.sample.magnified(inputs)


def _fits_single(a: Any) -> bool:
    """Whether no finite number of an operand is infinite in 32 bits."""
    if a is None or a.dtype != np.float64:
        return True
    largest = np.max(np.abs(a[np.isfinite(a)]), initial=0)
    return bool(largest <= np.finfo(np.float32).max)


RELATIVE = {2: 1e-2, 4: 2e-5, 8: 1e-9}
"""Of elements with so many bytes."""


SINGLE = frozenset(
    [
        "Attention",
        "LayerNormalization",
        "RMSNormalization",
        "GroupNormalization",
        "Shrink",
    ]
)
"""What is computed in 32 bits, even of operands with 64, by one of the oracles at least."""


def same(
    a: Any, b: Any, scale: float, *, is_single: bool = False, roundings: int = 1
) -> bool:
    """
    Whether two results are the same up to so many roundings, as numbers up to `scale`
    round.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind not in "fcV":
        return bool((a == b).all())
    relative = RELATIVE.get(a.dtype.itemsize, 0.3)
    if a.dtype.name == "bfloat16":
        relative = 3e-2
    if is_single:
        relative = max(relative, RELATIVE[4])
    relative *= max(1.0, roundings / 8)  # half a unit each, of 4 that are allowed
    wide: Any = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= relative * (np.abs(a) + scale / 10)
        both = np.isfinite(a) & np.isfinite(b)
        return bool(((near & both) | (a == b) | (np.isnan(a) & np.isnan(b))).all())


def _lined(values: dict[str, Any]) -> str:
    return "; ".join(
        f"{name} {np.asarray(v).dtype}{list(np.shape(v))} {np.asarray(v).tolist()}"
        for name, v in values.items()
    )
