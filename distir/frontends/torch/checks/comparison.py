"""
Compares imported programs with their PyTorch modules, on the example inputs and on
inputs with different values.

Both of PyTorch's exporters can be wrong without an error. The older exporter loses
writes through views of a tensor (Longformer's scores). Some modules behave differently
while they are exported (masks of attention). The effect of Python code that runs once
is fixed in the program.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.dialects.builtin import TensorType

from distir.dialects.onnx import RANDOM
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.errors import DistIRError
from distir.frontends.torch.checks.opaque import modules_on_arrays
from distir.frontends.torch.checks.other_inputs import other_calls
from distir.frontends.torch.checks.repeated_calls import call_twice
from distir.frontends.torch.modules.inputs import leaf_names
from distir.frontends.torch.modules.runs import (
    Array,
    ModuleCall,
    as_array,
    difference,
    is_amplified_rounding,
    run_module,
)
from distir.frontends.torch.trust import (
    CONTROL_FLOW,
    MISMATCH,
    PYTHON_RANDOM,
    Trust,
    way_out,
)
from distir.interpreters.train.opaque import opaque_modules
from distir.program import argument_names, entry_function, reachable_functions
from distir.program.unknown_sizes import is_unknown

if TYPE_CHECKING:
    import torch
    from xdsl.dialects.builtin import ModuleOp

    from distir.frontends.imported_model import ImportedModel
    from distir.frontends.torch.export.exported_module import ExportedModule

MOST_WORK = 4e10
"""
The largest number of FLOPs of a program that is compared. A program of more than half
of it is run only once. The interpreter does about 10^10 FLOPs in a second.
"""

_ELEMENT = 10
"""The number of FLOPs that take as long as one element of an op's result."""

_RANDOM = frozenset(f"onnx.{name}" for name in RANDOM - {"Dropout"})
"""
The ops that draw random numbers. Dropout is not among them, because it is removed from
the program.
"""


class _NotRun(Exception):
    """Raised if the interpreter cannot run the program."""


def compare(
    module: torch.nn.Module,
    example: ModuleCall,
    imported: ImportedModel,
    exported: ExportedModule,
    trust: Trust,
    *,
    training: bool,
    same_rows: bool,
) -> str | None:
    """
    Runs an imported program and its module on the example inputs and on inputs with
    different values, and compares the results (see `import_torch`). `same_rows` is the
    option of `other_calls`.

    Returns the reason if the comparison was not possible, else None. Raises DistIRError
    if results differ; only warns if the user accepts the difference.
    """
    if imported.valueless or PYTHON_RANDOM in exported.accepted:
        return None
    exporter = "older" if exported.is_traced else "newer"
    own = ModuleComparison(module, example, imported, training, exporter)
    with opaque_modules(modules_on_arrays(exported.opaque, training=training)):
        return _compared(own, exported, trust, same_rows=same_rows)


def _compared(
    own: ModuleComparison, exported: ExportedModule, trust: Trust, *, same_rows: bool
) -> str | None:
    """
    Compares a program with its module on the example inputs and on inputs with
    different values. Returns the reason if this was not possible, else None. Raises
    DistIRError if results differ.
    """
    module, example, training = own.module, own.example, own.training
    try:
        if (why := own.why_not) is not None:
            return why
        if training:
            wanted = call_twice(module, example, trust)
        else:
            wanted = run_module(module, example, training=False)
        if wanted is None:
            return "the module cannot run on its example inputs"
        if own.is_quick or CONTROL_FLOW in exported.accepted:
            own.check(example, wanted)
        if CONTROL_FLOW not in exported.accepted:
            own.check_others(wanted, other_calls(example, same_rows=same_rows))
    except _NotRun as error:
        return f"the interpreter cannot run it ({error})"
    except ProgramDiffers as error:
        if MISMATCH not in trust.allow:
            raise
        warnings.warn(f"{error.problem}, which is accepted", stacklevel=4)
    return None


class ProgramDiffers(DistIRError):
    """
    Raised if a program and its module compute different results. `problem` describes
    the difference; the error's message also contains advice.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem


@dataclass
class ModuleComparison:
    """
    A module, its program, and the example inputs of the import.

    - `imported`: the program;
    - `training`: whether the program is for the module's current modes; if not, it is
      for evaluation mode;
    - `exporter`: the name, for messages, of the PyTorch exporter that wrote the program.
    """

    module: torch.nn.Module
    example: ModuleCall
    imported: ImportedModel
    training: bool
    exporter: str

    @property
    def why_not(self) -> str | None:
        """
        The reason why the program cannot be run beside the module, or None if it can.
        """
        if self._work > MOST_WORK:
            return f"a run of the program takes {self._work:.1e} operations"
        if any(op.name in _RANDOM for op in self.imported.module.walk()):
            return "the program draws random numbers"
        if self.program is None:
            return "the masks of its dropout are results"
        if self._arguments(self.example) is None:
            return "its arguments are no inputs of the module"
        return None

    @cached_property
    def _work(self) -> float:
        return _work(self.imported.module)

    @property
    def is_quick(self) -> bool:
        """Whether two runs of the program take at most `MOST_WORK` FLOPs."""
        return 2 * self._work <= MOST_WORK

    @cached_property
    def program(self) -> ModuleOp | None:
        """
        The program with its dropout removed, or None if the program uses the masks of
        dropout.
        """
        from xdsl.rewriter import Rewriter

        module = self.imported.module
        if all(op.name != "onnx.Dropout" for op in module.walk()):
            return module
        module = module.clone()
        for op in [op for op in module.walk() if op.name == "onnx.Dropout"]:
            if any(result.uses for result in op.results[1:]):
                return None
            Rewriter.replace_op(op, [], [op.operands[0], *[None] * len(op.results[1:])])
        return module

    @cached_property
    def _run(self) -> Any:
        from distir.interpreters.reference import program_runner

        assert self.program is not None
        return program_runner(self.program)

    def _arguments(self, call: ModuleCall) -> list[Array] | None:
        """
        Returns the program's arguments for a call of the module, or None if an argument
        does not correspond to an input of the module.
        """
        inputs = self._inputs(call)
        function = entry_function(self.imported.module)
        names = argument_names(function)
        weights = self.imported.weights
        own = [name for name in names if name not in weights]
        if not set(own) <= set(inputs):
            if len(own) != len(inputs):
                return None
            inputs = dict(zip(own, inputs.values(), strict=True))
        values: list[Array] = []
        for name, argument in zip(names, function.args, strict=True):
            if name in weights:
                values.append(weights[name])
                continue
            assert isinstance(argument.type, TensorType)
            dtype = numpy_dtype(argument.type.element_type)
            values.append(as_array(inputs[name]).astype(dtype))
        return values

    def _inputs(self, call: ModuleCall) -> dict[str, torch.Tensor]:
        """
        Returns the tensors among the inputs of a call, by the names of the program's
        arguments.
        """
        import torch

        bound = inspect.signature(self.module.forward).bind(*call.args, **call.kwargs)
        names = leaf_names(dict(bound.arguments), "input")
        pairs = zip(names, call.leaves, strict=True)
        return {name: leaf for name, leaf in pairs if isinstance(leaf, torch.Tensor)}

    def check(self, call: ModuleCall, wanted: Sequence[Array]) -> None:
        """
        Raises DistIRError if the program's results for `call` differ by more than
        rounding from `wanted`, the results of the module.
        """
        arguments = self._arguments(call)
        assert arguments is not None
        try:
            found: list[Array] = [np.asarray(x) for x in self._run(arguments)]
        except DistIRError as error:
            raise _NotRun(str(error)) from error
        if len(found) != len(wanted):
            return  # the exporter leaves out a result that is returned twice
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            problem = difference(one, other)
            if problem is None or self._is_rounding(call, index, wanted, other):
                continue
            inputs = "the example inputs"
            if call is not self.example:
                inputs = "other inputs of the same shapes"
            name, begins, part = self._beginning(call, arguments), "", ""
            if name is not None:
                part = type(self.module.get_submodule(name)).__name__
                begins = (
                    f". It begins in {f'{name!r} ({part})' if name else 'its forward'}"
                )
            raise ProgramDiffers(
                f"PyTorch's {self.exporter} exporter writes {type(self.module).__name__} as "
                f"a program that computes something else on {inputs}: result {index} "
                f"{problem}{begins}",
                f"{self._advice(part)}, {way_out(MISMATCH)}",
            )

    def check_others(
        self, wanted: Sequence[Array], calls: Iterable[ModuleCall]
    ) -> None:
        """
        Checks the program on the first of `calls` that the module can run. If `wanted`,
        the results on the example inputs, are finite, skips calls with results that are
        not finite. Raises DistIRError if results differ.
        """
        is_finite = all(map(_is_finite, wanted))
        for call in calls:
            results = run_module(self.module, call, training=self.training)
            if results is not None and (not is_finite or all(map(_is_finite, results))):
                self.check(call, results)
                return

    def _is_rounding(
        self, call: ModuleCall, index: int, wanted: Sequence[Array], found: Array
    ) -> bool:
        """
        Whether the result `index` of the program differs from the module's by rounding
        only.
        """
        wide = run_module(self.module, call, training=self.training, wide=True)
        if wide is None or len(wide) != len(wanted):
            return False
        return is_amplified_rounding(wanted[index], found, wide[index])

    def _beginning(self, call: ModuleCall, arguments: Sequence[Array]) -> str | None:
        """
        Returns the name of the part of the module in which the difference begins, or
        None if the part is not found.
        """
        from distir.frontends.torch.checks.bisection import first_difference

        assert self.program is not None
        return first_difference(
            self.module, call, self.program, arguments, training=self.training
        )

    def _advice(self, kind: str) -> str:
        """Returns advice for a difference that begins in a part of class `kind`."""
        config: Any = getattr(self.module, "config", None)
        attention = getattr(config, "_attn_implementation", None)
        if attention not in (None, "eager") and "attention" in kind.lower():
            return (
                f"models of transformers choose their masks of attention in another way "
                f"while they are exported ({attention!r}): import the module after "
                f'set_attn_implementation("eager")'
            )
        if self.exporter == "older":
            return "change the part that the newer exporter cannot write"
        return (
            "write that part without what it does only while it runs (values that Python "
            "reads or counts, writing in place)"
        )


def _is_finite(array: Array) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _work(module: ModuleOp) -> float:
    """
    Returns the number of FLOPs of a program, plus `_ELEMENT` FLOPs for each element of
    a result.
    """
    from distir.sharding.rule import rule_for

    total = 0.0
    for function in reachable_functions(module):
        for op in function.body.block.ops:
            values = [*op.operands, *op.results]
            if any(is_unknown(value.type) for value in values):
                continue
            total += rule_for(op).flops
            for result in op.results:
                if isinstance(result.type, TensorType) and op.name != "onnx.Constant":
                    total += _ELEMENT * float(np.prod(result.type.get_shape()))
    return total
