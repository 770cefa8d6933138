"""
Records, during an export, effects of a module's Python code that are not in the
exported program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distir.errors import DistIRError, listed
from distir.frontends.torch.export.failures import tell_of_backwards
from distir.frontends.torch.export.gradients import (
    OwnBackward,
    no_gradients_inside,
    own_backwards,
)
from distir.frontends.torch.modules.meta import has_no_value, lacks_values
from distir.frontends.torch.modules.python import line_that_draws
from distir.frontends.torch.modules.runs import ModuleCall, comparable
from distir.frontends.torch.modules.state import python_random_state
from distir.frontends.torch.trust import (
    CONTROL_FLOW,
    CUSTOM_BACKWARD,
    PYTHON_RANDOM,
    Trust,
    way_out,
)

if TYPE_CHECKING:
    import torch


class LostPython:
    """
    Records the effects of a module's Python code that are not in the exported program:
    custom backward functions, random numbers of Python, and `reads`, the lines in which
    Python reads values while the older exporter traces the module.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        training: bool,
        trust: Trust,
    ) -> None:
        self._module, self._call = module, ModuleCall(args, kwargs)
        self._training, self._trust = training, trust
        self._backwards: dict[type, OwnBackward] = {}
        self._draws = False
        self.reads: list[str] = []

    @contextlib.contextmanager
    def recorded(self) -> Generator[None]:
        """
        A context manager inside which the module is exported and the effects are
        recorded.
        """
        before = python_random_state()
        with (
            own_backwards() as self._backwards,
            no_gradients_inside(type(self._module).__name__),
        ):
            yield
        self._draws = python_random_state() != before

    def accepted(self) -> set[str]:
        """
        Returns the names of the recorded effects that the user accepts. Raises
        DistIRError for an effect that the user does not accept. If the program is not
        for training, gradients that differ from the module's cause only a warning.
        """
        allow = self._trust.allow
        kind = type(self._module).__name__
        found: set[str] = set()
        if self.reads:
            found.add(CONTROL_FLOW)
        if self.reads and CONTROL_FLOW not in allow:
            raise DistIRError(
                f"{kind} reads values of tensors, or sizes that depend on them, in Python, at "
                f"{listed(self.reads, 2)}. The program has what follows from the values of "
                f"the example inputs, for all others too. Write it with torch.where or torch.cond, a loop over the experts "
                f"that are chosen as one over all, weighed by a one-hot of the router's choice, "
                f"{way_out(CONTROL_FLOW)}"
            )
        if self._draws:
            found.add(PYTHON_RANDOM)
        if self._draws and PYTHON_RANDOM not in allow:
            line = self._line_that_draws()
            raise DistIRError(
                f"{kind} draws random numbers of Python or NumPy"
                f"{f' at {line}' if line else ''}, once, when it is imported: the program "
                f"has the same ones in each step. Use dropout of PyTorch, "
                f"{way_out(PYTHON_RANDOM)}"
            )
        if CUSTOM_BACKWARD not in allow:
            others = self._other_gradients()
            tell_of_backwards(self._module, others, refuse=self._training)
        return found & allow

    def _line_that_draws(self) -> str:
        if self._lacks_values:
            return ""
        with comparable(self._module, training=self._training):
            call = self._call.copied()
            return line_that_draws(lambda: self._module(*call.args, **call.kwargs))

    @property
    def _lacks_values(self) -> bool:
        from torch import Tensor

        return lacks_values(self._module) or any(
            isinstance(x, Tensor) and has_no_value(x) for x in self._call.leaves
        )

    def _other_gradients(self) -> list[OwnBackward]:
        """
        Returns the functions whose custom backward function may not compute the
        derivative of the forward function. Tests each function with the arguments that
        it had in a run of the module.
        """
        import torch

        if not self._backwards or not self._trust.check or self._lacks_values:
            return list(self._backwards.values())
        with (
            comparable(self._module, training=self._training),
            own_backwards(keep=True) as ran,
            torch.enable_grad(),
            contextlib.suppress(Exception),  # what it cannot run is not known
        ):
            call = self._call.copied()
            self._module(*call.args, **call.kwargs)
        tried = {cls: ran.get(cls, own) for cls, own in self._backwards.items()}
        return [own for own in tried.values() if not own.is_derivative()]
