"""Parameters and buffers that several parallel modules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from distir.errors import DistIRError
from distir.parallel.rank_program import RankProgram
from distir.parallel.steps import chosen_by
from distir.parallel.weights import names_of
from distir.planning.distribution.entries import Chosen

if TYPE_CHECKING:
    from distir.parallel.parallel_module import ParallelModule


class SharedTensors:
    """
    The parameters and buffers that a module shares with the source modules of the
    parallel modules `others`. Raises DistIRError if the module shares no tensor with
    one of them.
    """

    def __init__(self, source: nn.Module, others: Sequence[ParallelModule]):
        self._names = names_of(source)
        self._found: dict[str, tuple[ParallelModule, str]] = {}
        for other in others:
            theirs = {id(tensor): name for name, tensor in _of_source(other)}
            common = {
                name: (other, theirs[id(tensor)])
                for name, tensor in _tensors(source)
                if id(tensor) in theirs
            }
            if not common:
                raise DistIRError(
                    f"parallelize: {type(source).__name__} has no parameter of "
                    f"{type(other.source).__name__}, with which it is to share some "
                    f"(shared_with); make it of the same submodules"
                )
            self._found = {**common, **self._found}

    @property
    def chosen(self) -> Chosen:
        """
        The layouts and pipeline stages of the shared tensors in the programs of
        `others`.
        """
        layouts, stages = {}, dict[str, int]()
        for name, (other, theirs) in self._found.items():
            own = chosen_by(_program(other))
            if theirs in own.layouts:
                layouts[name] = own.layouts[theirs]
            if theirs in own.stages:
                stages[name] = own.stages[theirs]
        return Chosen(layouts, stages)

    def check(self, program: RankProgram) -> None:
        """
        Raises DistIRError if the first program of a module cannot use the shared
        tensors in the layouts in which the other modules hold them.
        """
        for spec in program.all_arguments:
            if spec.name not in self._found:
                continue
            other, theirs = self._found[spec.name]
            known = {s.name: s for s in _program(other).all_arguments}.get(theirs)
            kind = type(other.source).__name__
            if known is None:
                raise DistIRError(
                    f"parallelize: the program of {kind} does not read {theirs!r}, and holds "
                    f"it whole; parallelize the module first that reads it"
                )
            same = _program(other).sharding_of(known) == program.sharding_of(spec)
            if not same or spec.repacked or known.repacked:
                raise DistIRError(
                    f"parallelize: {spec.role} {spec.name!r} is shared with {kind}, which has "
                    f"it in other parts, or on other ranks; give both modules the same "
                    f"options, and no schedule that merges layers"
                )

    def put_into(self, module: nn.Module) -> None:
        """
        Puts the shared tensors of the other modules into a parallel module, in place of
        its own tensors.
        """
        for name, (other, theirs) in self._found.items():
            held = dict(_tensors(other)).get(theirs)
            if held is None:  # it is on another stage
                continue
            for each in self._names.get(name, [name]):
                path, _, last = each.rpartition(".")
                part = module.get_submodule(path)
                if isinstance(held, nn.Parameter):
                    part._parameters[last] = held  # pyright: ignore[reportPrivateUsage]
                elif last in part._buffers:  # pyright: ignore[reportPrivateUsage]
                    part._buffers[last] = held  # pyright: ignore[reportPrivateUsage]


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _of_source(module: ParallelModule) -> list[tuple[str, torch.Tensor]]:
    return module._inputs.kept.tensors()  # pyright: ignore[reportPrivateUsage]


def _program(module: ParallelModule) -> RankProgram:
    return module._program  # pyright: ignore[reportPrivateUsage]
