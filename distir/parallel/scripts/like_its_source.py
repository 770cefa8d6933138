"""What other libraries ask a parallel module as if it were the module that it was made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import nn

from distir.errors import DistIRError
from distir.parallel.calling import Inputs
from distir.parallel.rank_program import RankProgram
from distir.parallel.scripts.guards import FOREIGN, check_conversion
from distir.parallel.scripts.source_class import of_class


class LikeItsSource(nn.Module):
    """
    A module that has the attributes and methods of the class of another one, and refuses what
    would have no effect on its program. `_inputs` has the other one.
    """

    _inputs: Inputs
    _program: RankProgram
    _is_prepared: bool | None = None

    @contextlib.contextmanager
    def no_sync(self) -> Generator[None]:
        """
        Returns a context manager for all but the last step of an accumulation, as DDP has one.
        It changes nothing: the program of each step sums its gradients over the ranks, and
        `.grad` is their sum, in the context as outside of it. Micro-batches in one program
        (`k=`, with `no_sync=True` of `parallelize`) communicate once for all of them.
        """
        yield

    @property
    def takes_labels(self) -> bool:
        """Whether a call in training takes labels behind the inputs."""
        return bool(self._program.labels)

    @property
    def source(self) -> nn.Module:
        """The module that was parallelized. Its values are those from before the training."""
        return self._inputs.source

    def __getattr__(self, name: str) -> Any:
        """
        Returns a parameter, buffer or part, or what the class of the source module has under
        this name: a value, a property, or a method, which then runs on this module.
        """
        if name in ("_parameters", "_buffers", "_modules") or "_inputs" not in vars(
            self
        ):
            return super().__getattr__(name)
        for kept in (self._parameters, self._buffers, self._modules):
            if name in kept:
                return kept[name]
        return of_class(self, self.source, name)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> Any:
        """Refuses conversions, by `to`, `half`, `cuda` and others, that change a tensor."""
        check_conversion(self, fn)
        return self

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What Accelerate asks before it wraps a module: `distir.trainers` has set it."""
        if self._is_prepared is None:
            raise DistIRError(FOREIGN.format(who="Accelerate"))
        return self._is_prepared

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        self._is_prepared = value

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """What DistributedDataParallel asks before it wraps a module."""
        raise DistIRError(FOREIGN.format(who="DistributedDataParallel"))
