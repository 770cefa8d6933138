"""
Compares a user's kernel with its reference, the ops that it replaces. The user's code
runs in a process of its own, which `kernel_verification` starts: `python -m
distir.scheduling.kernel_check JOB.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from distir.dialects.dist import Shard, with_layout
from distir.dialects.kernel import KernelDefOp, kernels
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.gradients.gradient_types import GradientTypes
from distir.gradients.reverse import ReverseMode
from distir.gradients.rule import is_differentiable
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.sharded import Sharded, from_shards
from distir.lowering.emitter import torch_dtype
from distir.program import ENTRY, entry_function
from distir.runtime import kernels as calls
from distir.sharding.kernel_parts import reference_part, rule_of, smallest_divisor
from distir.sharding.kernel_rule import parse_rule
from distir.sharding.layout import local_type
from distir.sharding.mesh import Mesh
from distir.sharding.rule import layout_for
from distir.system.output_files import write_text
from distir.text import ProgramParser, new_context

Array = npt.NDArray[Any]
Function = Callable[..., Any]

MOST_ELEMENTS = 1 << 25
"""
The maximal number of array elements of all values of a reference that is computed
whole. Larger references are computed on parts.
"""

_SEEDS = (0, 1)


class KernelCheck:
    """
    The checks of one kernel. Each check raises DistIRError if it finds a fault in the
    kernel.
    """

    def __init__(self, kernel: KernelDefOp, function: Function):
        self.kernel = kernel
        self._what = kernel.implementation.data
        self._function = partial(function, **kernel.named_options)
        self._rule = rule_of(kernel)
        names = parse_rule(kernel.rule.data)
        self._split = {
            factor: name
            for factor, name in enumerate(names.names)
            if name not in names.kept and self._rule.factors[factor].size > 1
        }
        self._parts = self._made_small()
        found = reference_part(kernel.reference.block, self._rule, self._parts)
        assert not isinstance(found, str), found  # the rule was proved
        self._program = _program(found.block, found.results)
        self._types = entry_function(self._program).function_type
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self.difference = 0.0

    def run(self) -> None:
        """
        Runs all checks. Afterwards, `difference` is the largest relative difference
        found. Raises DistIRError if a check fails.
        """
        for seed in _SEEDS:
            inputs = random_arguments(self._program, seed)
            found = self._call(inputs)
            self._compare(
                found, run_program(self._program, inputs), "", "its reference"
            )
            again = self._call(inputs)
            if any(
                a.tobytes() != b.tobytes() for a, b in zip(found, again, strict=True)
            ):
                raise DistIRError(
                    "two runs on the same inputs give different results; make it "
                    "deterministic"
                )
            for factor, name in self._split.items():
                if self._rule.factors[factor].size // self._parts.get(factor, 1) > 1:
                    on_parts = self._call_on_parts(inputs, factor)
                    how = f" computed on parts of {name!r}"
                    self._compare(on_parts, found, how, "that of the whole")

    def _call(self, inputs: Sequence[Array]) -> list[Array]:
        """
        Returns the results of the kernel for `inputs`. Raises DistIRError if the kernel
        changes its inputs.
        """
        return self._called(inputs, [_torch_type(t) for t in self._types.outputs])

    def _called(self, inputs: Sequence[Array], types: Sequence[Any]) -> list[Array]:
        tensors = [_tensor(array).to(self._device) for array in inputs]
        before = [tensor.clone() for tensor in tensors]
        kernel, function = self.kernel, self._function
        try:
            if kernel.wrt is None:
                with torch.no_grad():
                    out = calls.called(function, self._what, types, tensors)
            else:
                wrt = tuple(kernel.wrt.get_values())
                how = (
                    calls.gradients if kernel.autograd is None else calls.differentiated
                )
                out = how(function, self._what, wrt, types, tensors)
            found = [_array(v) for v in (out if isinstance(out, tuple) else (out,))]
        except calls.ProgramError as error:
            raise DistIRError(str(error)) from error
        except Exception as error:  # the user's code raises whatever it likes
            raise DistIRError(f"it fails ({type(error).__name__}: {error})") from error
        for i, (one, other) in enumerate(zip(tensors, before, strict=True)):
            if _array(one).tobytes() != _array(other).tobytes():
                raise DistIRError(f"it modifies its argument {i}; work on a copy")
        return found

    def _call_on_parts(self, inputs: Sequence[Array], factor: int) -> list[Array]:
        """
        Splits `inputs` along `factor`, calls the kernel on each part, and combines the
        results by the kernel's rule. Returns the combined results.
        """
        types = self._types
        rule = parse_rule(self.kernel.rule.data).rule(
            [array.shape for array in inputs],
            [shape_of(type_) for type_ in types.outputs],
        )
        count = smallest_divisor(rule.factors[factor].size)
        mesh = Mesh("parts", (("part", count),), tuple(range(count)))
        meshes, assignment = {"parts": mesh}, {factor: (Shard("part", None),)}
        kind, reduction = rule.factors[factor].kind, rule.factors[factor].reduction

        def placed(type_: Any, dims: Any, partial: bool) -> Any:
            terms = [("part", reduction)] if partial else []
            return with_layout(type_, layout_for(dims, rule, assignment, mesh, terms))

        sides = zip(inputs, types.inputs, rule.operands, strict=True)
        split = [
            Sharded.split(array, placed(type_, dims, False), meshes).shards
            for array, type_, dims in sides
        ]
        lacking = rule.partial_results.get(factor, frozenset())
        outputs = [
            placed(type_, dims, kind == "reduction" or i in lacking)
            for i, (type_, dims) in enumerate(
                zip(types.outputs, rule.results, strict=True)
            )
        ]
        local = [_torch_type(local_type(type_, meshes)) for type_ in outputs]
        per_part = [self._called(part, local) for part in zip(*split, strict=True)]
        return [
            from_shards(shards, type_, meshes).assemble()
            for shards, type_ in zip(zip(*per_part, strict=True), outputs, strict=True)
        ]

    def _compare(
        self, found: Sequence[Array], wanted: Sequence[Array], how: str, what: str
    ) -> None:
        limit = self.kernel.largest_difference
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
            scale = float(np.abs(b).max(initial=0.0)) or 1.0
            apart = float(np.abs(a - b).max(initial=0.0)) / scale
            if not apart <= limit:
                name = "its result"
                if self.kernel.wrt is not None:
                    name = f"its gradient of argument {self.kernel.wrt.get_values()[i]}"
                raise DistIRError(
                    f"{name}{how} is {apart:.2g} from {what}, relative to the largest "
                    f"element; the tolerance is {limit:g}"
                )
            self.difference = max(self.difference, apart)

    def _made_small(self) -> dict[int, int]:
        """
        Returns, for each factor that must be split, the number of parts that makes the
        reference small enough to compute. Returns an empty table if the whole reference
        is small enough. Raises DistIRError if even the smallest parts are too large.
        """
        block, parts = self.kernel.reference.block, dict[int, int]()
        sizes = [prod(shape_of(v)) for op in block.ops for v in op.results]
        if sum(sizes) <= MOST_ELEMENTS:
            return parts
        for factor in self._split:
            size = self._rule.factors[factor].size
            parts[factor] = size // smallest_divisor(size)
        parts = {factor: count for factor, count in parts.items() if count > 1}
        found = reference_part(block, self._rule, parts)
        assert not isinstance(found, str), found
        size = sum(prod(shape_of(v)) for op in found.block.ops for v in op.results)
        if size > MOST_ELEMENTS:
            raise DistIRError(
                f"its reference has {size} elements on the smallest parts that the rule "
                f"allows, too many to be compared ({MOST_ELEMENTS} at most); import the "
                f"model with smaller inputs"
            )
        return parts


def _torch_type(type_: Any) -> tuple[tuple[int, ...], torch.dtype]:
    text = torch_dtype(onnx_element_type(type_.element_type), "a kernel")
    return shape_of(type_), getattr(torch, text.removeprefix("torch."))


def _tensor(array: Array) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _array(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # every number of bf16 is one of f32
        tensor = tensor.float()
    return tensor.numpy()


def _program(block: Block, results: Sequence[Any]) -> ModuleOp:
    """
    Returns a program with the ops of `block` as its body, which returns `results`.
    """
    block.add_op(ReturnOp(*results))
    types = [arg.type for arg in block.args], [value.type for value in results]
    return ModuleOp([FuncOp(ENTRY, types, Region(block))])


def kernel_with_gradient(module: ModuleOp, symbol: str) -> Iterator[KernelDefOp]:
    """
    Yields the kernel called `symbol`, and then the kernel of its gradient, if there is
    one.
    """
    kernel = kernels(module)[symbol]
    yield kernel
    if kernel.gradient is not None:
        arguments = kernel.reference.block.args
        wanted = [i for i, arg in enumerate(arguments) if is_differentiable(arg)]
        made = ReverseMode(module, GradientTypes()).kernels.kernel(kernel, wanted)
        if made.wrt is not None and made.wrt.get_values():
            yield made


def _loaded(name: str, file: str) -> Any:
    spec = spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DistIRError(
            f"{file} cannot be loaded ({type(error).__name__}: {error})"
        ) from error
    return module


def _function(files: dict[str, str], implementation: str) -> Function:
    name, _, function = implementation.partition(":")
    module = sys.modules.get(name) if name in _LOADED else _loaded(name, files[name])
    _LOADED.add(name)
    found = getattr(module, function, None)
    if not callable(found):
        raise DistIRError(f"{files[name]} has no function {function!r}")
    return found


_LOADED: set[str] = set()


def main(job: Path) -> None:
    """
    Checks the kernel that the job file `job` names. Writes the result to a file: the
    differences, or the name of the wrong function and the reason.
    """
    asked = json.loads(job.read_text(encoding="utf-8"))
    text = Path(asked["program"]).read_text(encoding="utf-8")
    module = ProgramParser(new_context(), text, asked["program"]).parse_module()
    torch.manual_seed(0)
    found: list[float] = []
    for kernel in kernel_with_gradient(module, asked["kernel"]):
        try:
            function = _function(asked["files"], kernel.implementation.data)
            check = KernelCheck(kernel, function)
            check.run()
        except DistIRError as error:
            problem = {"problem": [kernel.implementation.data, str(error)]}
            write_text(asked["answer"], json.dumps(problem))
            raise SystemExit(1) from error
        found.append(check.difference)
    answer = json.dumps({"differences": found})
    write_text(asked["answer"], answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
