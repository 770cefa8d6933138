"""
The programs of a training step. There is one program for each set of tensors that need
gradients and each type of `torch.autocast`. A program is made when a step first needs
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from distir.dialects.dist import Layout, Shard
from distir.errors import DistIRError
from distir.parallel.rank_program import RankProgram
from distir.parallel.shapes import Example, Shapes
from distir.parallel.weights import names_of
from distir.planning.distribution.entries import Chosen
from distir.runtime.runtime import KEPT_ROLES


@dataclass(frozen=True)
class Needed:
    """
    The tensors whose gradients a step computes. `parameters` holds first names in the
    source module. `inputs` holds the names of inputs and labels in the program.
    """

    parameters: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.parameters or self.inputs)

    def __or__(self, other: Needed) -> Needed:
        return Needed(self.parameters | other.parameters, self.inputs | other.inputs)


class Steps:
    """
    Chooses the program of each step.

    The first program, `base`, computes the gradients of the parameters and example
    inputs that require gradients when the module is parallelized. `with_inputs` tells
    whether any example input requires gradients. If nothing requires gradients yet,
    `base` computes the gradients of all parameters. `base` is autocast to the type
    `autocast`; None for no autocast. The module stores parameters in the layouts that
    `base` takes.

    `make` makes a program, on all ranks. Its arguments are the names of the parameters
    and of the inputs whose gradients the program computes, and the type of autocast.
    None in place of the inputs stands for the example inputs that require gradients.
    """

    def __init__(
        self,
        source: nn.Module,
        make: Callable[
            [frozenset[str], frozenset[str] | None, str | None, Example | None],
            RankProgram,
        ],
        with_inputs: bool,
        autocast: str | None = None,
    ):
        self._first = {
            n: first for first, names in names_of(source).items() for n in names
        }
        self._make = make
        parameters = dict(source.named_parameters())
        trained = frozenset(_requiring(parameters))
        if not trained and not with_inputs:
            trained = frozenset(
                n for n, p in parameters.items() if p.is_floating_point()
            )
        self._autocast = autocast
        self.base = make(trained, None, autocast, None)
        self._first_needed = Needed(trained, self.base.inputs_with_gradients)
        self._programs: dict[tuple[Needed, str | None, Shapes | None], RankProgram] = {
            (self._first_needed, autocast, None): self.base
        }
        self._own: Needed | None = None
        self._needed = Needed()

    def needed(
        self, named: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]
    ) -> Needed:
        """
        Returns the tensors that need gradients in this step on any rank. `named` holds
        the parameters and buffers of the module, and `given` the inputs and labels, by
        name. Every rank must call this method.
        """
        if not torch.is_grad_enabled():
            return Needed()
        own = Needed(
            frozenset(self._first[n] for n in _requiring(named) if n in self._first),
            frozenset(_requiring(given)),
        )
        if self._is_new(own):
            self._own, self._needed = own, own
            if self.base.is_pipeline:  # each rank knows of its own parameters alone
                found: list[Needed] = [own] * dist.get_world_size()
                dist.all_gather_object(found, own)
                for other in found:
                    self._needed |= other
        return self._needed

    def _is_new(self, own: Needed) -> bool:
        """
        Whether the tensors that need gradients differ from those of the last step, on
        this rank or, in a pipeline, on any rank.
        """
        is_new = own != self._own
        if self.base.is_pipeline:
            flag = torch.tensor(int(is_new), device=self.base.device)
            dist.all_reduce(flag, dist.ReduceOp.MAX)
            is_new = bool(flag)
        return is_new

    def program(
        self,
        needed: Needed,
        autocast: str | None = None,
        shapes: Shapes | None = None,
        example: Callable[[], Example] | None = None,
    ) -> RankProgram:
        """
        Returns the program that computes the gradients in `needed`, autocast to the
        type `autocast`, for global batches of the shapes in `shapes` (None: the shapes
        of `base`). `example` returns such a batch. If `needed` is empty, the program
        computes the gradients of `base`. Every rank must call this method. Raises
        DistIRError if the program cannot be made.
        """
        needed = needed or self._first_needed
        key = needed, autocast, shapes
        is_inside = not self.base.gradients
        if is_inside and autocast == "f16" != self._autocast:
            raise DistIRError(
                "a step inside of torch.autocast of float16 scales its loss, lest small "
                "gradients are lost, and the module does not hold the scale; call "
                'parallelize inside of torch.autocast too, or with dtype="f16" (a '
                "GradScaler is not needed), or autocast to bfloat16"
            )
        if key not in self._programs:
            given = None if example is None else example()
            if needed == self._first_needed:
                made = self._make(needed.parameters, None, autocast, given)
            else:
                made = self._make(needed.parameters, needed.inputs, autocast, given)
            self._programs[key] = made
        return self._programs[key]


def chosen_by(program: RankProgram) -> Chosen:
    """
    Returns the layouts and pipeline stages of the tensors that a module stores. The
    module's other programs follow them.
    """
    kept = [s for s in program.all_arguments if s.role in KEPT_ROLES and s.mesh]
    layouts = {
        s.name: Layout(s.mesh, tuple(tuple(Shard(*x) for x in dim) for dim in s.split))
        for s in kept
    }
    stages = {s.name: program.stages[s.name] for s in kept if s.name in program.stages}
    return Chosen(layouts, stages)


def _requiring(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if tensor.requires_grad]


@contextlib.contextmanager
def training(module: nn.Module, names: frozenset[str]) -> Generator[None]:
    """
    Returns a context manager that sets `requires_grad` of all parameters of a module:
    true for the parameters in `names`, false for all others. At its end it restores the
    old values.
    """
    parameters = dict(module.named_parameters())
    before = {name: p.requires_grad for name, p in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in names)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(before[name])
