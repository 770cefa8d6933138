"""
The options that change the forward program of a module before it is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distir.dialects.onnx_ops.values import FLOAT_TYPES
from distir.dialects.train_ops.float8 import RECIPES
from distir.errors import one_of
from distir.frontends.options import ModuleOptions
from distir.gradients.options import StepOptions
from distir.options import same_option
from distir.pipelining.registry import SCHEDULES
from distir.transforms.precision.options import PrecisionOptions

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

Script = Callable[[Any], None]
"""
A schedule as a Python function. It takes a `distir.scheduling.Schedule` and records
actions in it.
"""


@dataclass(frozen=True)
class ForwardOptions:
    """
    The options that change a forward program.

    - `dtype`: the floating-point type of computations; None for the module's own types;
    - `autocast`: the 16-bit type of the operators in PyTorch's autocast list, as inside
      `torch.autocast`; None for no autocast. Not together with `dtype`;
    - `float8`: the scaling of 8-bit floats in products; None for products in the type
      of the model;
    - `attention`: whether attention that a module writes as several ops becomes one op;
    - `equal_features`: whether each sample has as many places for features as there are
      features for it (see `import_torch`);
    - `script`: a schedule in its IR form, as text; "" for no schedule.
    """

    dtype: str | None = same_option(PrecisionOptions, "dtype")
    float8: str | None = same_option(PrecisionOptions, "float8")
    attention: bool = same_option(StepOptions, "fused_attention")
    script: str = ""
    equal_features: bool = same_option(ModuleOptions, "equal_features")
    autocast: str | None = same_option(PrecisionOptions, "autocast")

    @property
    def needs_loss_scaling(self) -> bool:
        """Whether the loss must be scaled, because small gradients underflow in f16."""
        return "f16" in (self.dtype, self.autocast)

    @staticmethod
    def of(
        dtype: Any,
        float8: str | None,
        attention: bool,
        schedule: str | Path | Script | None,
    ) -> tuple[ForwardOptions, str]:
        """
        Returns the options, and the name of the pipeline's schedule, or "" if there is
        none. `dtype` is a name or a type of PyTorch; `float8` is a name. `schedule` is
        either the name of a pipeline's schedule, or a schedule script: a function or a
        file. Raises DistIRError for an unknown type, or a script that cannot be read.
        """
        name = None if dtype is None else name_of_float(dtype)
        if float8 is not None:
            one_of("float8", float8, RECIPES, "parallelize")
        if isinstance(schedule, str) and Path(schedule).suffix not in (".py", ".mlir"):
            one_of("schedule", schedule, SCHEDULES, "parallelize")
            return ForwardOptions(name, float8, attention), schedule
        script = "" if schedule is None else _recorded(schedule)
        return ForwardOptions(name, float8, attention, script), ""

    def apply(self, program: ModuleOp, apart: Collection[str] = ()) -> None:
        """
        Applies the options, in place, to a program from the frontend. Also folds
        shapes, and turns repeated layers into functions. The arguments named in `apart`
        keep their floating-point type. Raises DistIRError if an option does not fit the
        program.
        """
        from distir.passes.apply_schedule import ApplySchedulePass
        from distir.passes.autocast import AutocastPass
        from distir.passes.float8 import Float8Pass
        from distir.passes.raise_patterns import RaisePatternsPass
        from distir.scheduling.script import add_schedules, parse_script
        from distir.tools.files import apply_passes, named_pass, verify
        from distir.transforms.precision.retyping import convert

        fold, outline = named_pass("fold-shapes"), named_pass("outline-repeats")
        apply_passes(program, fold, RaisePatternsPass(attention=self.attention))
        if self.dtype is not None:
            convert(program, FLOAT_TYPES[self.dtype], stored=False, apart=apart)
            verify(program)
        if self.autocast is not None:
            apply_passes(program, AutocastPass(self.autocast))
        if self.float8 is not None:
            apply_passes(program, Float8Pass(self.float8))
        apply_passes(program, outline)
        if self.script:
            add_schedules(program, parse_script(self.script, "schedule"))
            apply_passes(program, ApplySchedulePass())

    def complete(self, program: ModuleOp) -> None:
        """
        Replaces products in 8-bit floats, in place, by ops that can be distributed.
        Call this after `differentiate`, which needs each product as one op.
        """
        from distir.tools.files import apply_passes, named_pass

        if self.float8 is not None:
            apply_passes(program, named_pass("expand-float8"))


def name_of_float(dtype: Any) -> str:
    """
    Returns DistIR's name of a floating-point type, given as a name or as PyTorch's
    type. Raises DistIRError for other types.
    """
    text = str(dtype)
    known = {
        "torch.bfloat16": "bf16",
        "torch.float16": "f16",
        "torch.float32": "f32",
    }
    return one_of("dtype", known.get(text, text), tuple(FLOAT_TYPES), "parallelize")


def _recorded(schedule: str | Path | Script) -> str:
    """
    Returns the IR form of a schedule script, as text. Raises DistIRError if the script
    cannot be read.
    """
    from xdsl.dialects.builtin import ModuleOp

    from distir.scheduling.recorder import Schedule
    from distir.scheduling.script import read_script

    if callable(schedule):
        recording = Schedule()
        schedule(recording)
        found = [recording.recorded()]
    else:
        found = read_script(Path(schedule))
    return str(ModuleOp(found))
