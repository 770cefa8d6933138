"""
Attributes and methods that let other libraries use a parallel module as its source
module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, Self

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from distir.errors import DistIRError
from distir.parallel.calling import Inputs
from distir.parallel.rank_program import RankProgram
from distir.parallel.scripts.guards import FOREIGN, check_conversion
from distir.parallel.scripts.sealed import Sealed, replaced
from distir.parallel.scripts.source_class import of_class


class LikeItsSource(Sealed):
    """
    A module with the attributes and methods of its source module's class. It refuses
    methods that would have no effect on its program. `_inputs` holds the source module.
    """

    _inputs: Inputs
    _program: RankProgram
    _is_prepared: bool | None = None

    @contextlib.contextmanager
    def no_sync(self) -> Generator[None]:
        """
        Returns a context manager for every step of an accumulation except the last, as
        DDP's `no_sync`. It has no effect: the program of each step sums its gradients
        over the ranks, inside and outside the context. To communicate once for several
        micro-batches, run them in one program with `k=` and `no_sync=True` of
        `parallelize`.
        """
        yield

    @property
    def takes_labels(self) -> bool:
        """Whether a call in training takes labels after the inputs."""
        return bool(self._program.labels)

    @property
    def source(self) -> nn.Module:
        """
        The module that was parallelized. Its parameters keep their values from before
        the training.
        """
        return self._inputs.source

    def __getattr__(self, name: str) -> Any:
        """
        Returns a parameter, buffer or submodule; otherwise the attribute `name` of the
        source module's class. A method of that class runs on this module. Raises
        AttributeError if there is no such attribute.
        """
        if name in ("_parameters", "_buffers", "_modules") or "_inputs" not in vars(
            self
        ):
            return super().__getattr__(name)
        for kept in (self._parameters, self._buffers, self._modules):
            if name in kept:
                return kept[name]
        return of_class(self, self.source, name)

    def train(self, mode: bool = True) -> Self:
        """
        Puts the module and all its parts into training mode (`mode=True`) or evaluation
        mode. Returns the module.
        """
        for part in self.modules():
            part.training = mode
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Raises DistIRError, because `parallelize` compiles the program."""
        raise DistIRError(
            "compile() has no effect on the program of a parallel module; say so when the "
            "module is parallelized (compiled=True)"
        )

    @property
    def _torchdynamo_orig_callable(self) -> Any:
        """
        The attribute that `torch.compile` reads from the module that it is to compile.
        Reading the attribute raises DistIRError.
        """
        return self.compile()

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """
        Loads this rank's parts of values, in the form in which `state_dict()` of this
        module returns them. Raises DistIRError for whole tensors, and for `assign`.
        """
        if assign:
            raise replaced("load_state_dict(assign=True)")
        own = dict(self.named_parameters(remove_duplicate=False))
        for name, value in state_dict.items():
            if isinstance(own.get(name), DTensor) and not isinstance(value, DTensor):
                raise DistIRError(
                    f"load_state_dict: {name!r} is a whole tensor, and a parallel module "
                    f"holds parts (DTensor); give the file to parallelize (weights=...), or "
                    f"load the values into the module before it is parallelized"
                )
        return super().load_state_dict(state_dict, strict, assign)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> Any:
        """
        Raises DistIRError for a conversion (`to`, `half`, `cuda` and others) that would
        change a tensor. Any other conversion leaves the module unchanged.
        """
        check_conversion(self, fn)
        return self

    @property
    def _is_accelerate_prepared(self) -> bool:
        """
        The flag that Accelerate reads before it wraps a module. Raises DistIRError
        unless `distir.trainers` has set it.
        """
        if self._is_prepared is None:
            raise DistIRError(FOREIGN.format(who="Accelerate"))
        return self._is_prepared

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        self._is_prepared = value

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """
        The attribute that DistributedDataParallel reads before it wraps a module.
        Reading the attribute raises DistIRError.
        """
        raise DistIRError(FOREIGN.format(who="DistributedDataParallel"))
