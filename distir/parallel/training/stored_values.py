"""
The values that a parallel module stores: parameters, buffers, states, and gradients of
parameters. The programs of the module read them and return new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from distir.parallel.filling import STATES
from distir.parallel.merged import merged_parts
from distir.parallel.rank_program import RankProgram
from distir.parallel.weights import local_part


class StoredValues:
    """
    Maps the values that a module stores to arguments and results of its programs. The
    module stores them in the layout of `program`, its first program. `others` are, by
    name, the values of the program that the module stores neither as parameters nor as
    buffers. `buffers` are the names of the buffers of the source module, of all stages.
    The methods take the module's parameters and buffers as `named`, under all their
    names.
    """

    def __init__(
        self,
        program: RankProgram,
        others: dict[str, torch.Tensor],
        buffers: Collection[str],
    ):
        self._program, self._others = program, others
        self._buffers = frozenset(buffers)
        self._known = {spec.name: spec for spec in program.all_arguments}

    def held(
        self,
        program: RankProgram,
        given: Mapping[str, torch.Tensor],
        named: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """
        Returns this rank's parts of the program's arguments that a call does not pass:
        parameters, constants and states. Every rank must call this method.
        """
        found: dict[str, torch.Tensor] = {}
        for spec in program.all_arguments:
            if spec.name not in given and not spec.gradient_of:
                value = self._as_in(program, spec, named)
                if value is not None:
                    found[spec.name] = value
        return found

    def _as_in(
        self, program: RankProgram, spec: Any, named: Mapping[str, torch.Tensor]
    ) -> torch.Tensor | None:
        """
        Returns a parameter, constant or state in the layout that `program` takes, or
        None if this rank does not need it. The layout or the stage may differ from the
        first program's, so that ranks may communicate: every rank must call this
        method.
        """
        own = self._program
        known = self._known.get(spec.name)
        # A constant of the exporter may have another value in another program.
        is_made = spec.role == "constant" and spec.name not in self._buffers
        if known is None or (program is not own and is_made):
            if not program.holds(spec):
                return None
            value = named.get(spec.name)
            if value is None:
                return program.other(spec)
            return program.part(spec, local_part(value))
        held = self.tensor(spec.name, named) if own.holds(known) else None
        if program is own:
            return held
        return own.moved(known, held, program, spec)

    def tensor(self, name: str, named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """
        Returns this rank's part of the parameter, buffer or program state called
        `name`.
        """
        value = self._others.get(name)
        if value is None:
            value = named.get(name)
        if value is None:
            value = named[f"{STATES}.{name}"]
        return local_part(value)

    def update(
        self,
        program: RankProgram,
        results: Mapping[int, torch.Tensor],
        named: Mapping[str, torch.Tensor],
    ) -> None:
        """
        Stores the new values of buffers and states, which are among the `results` of
        `program`. Every rank must call this method.
        """
        for index, spec in enumerate(program.all_results):
            if spec.updates:
                own = self._known[spec.updates]
                value = program.moved(spec, results.get(index), self._program, own)
                if value is not None:
                    self.tensor(spec.updates, named).copy_(value)

    def gradients(
        self,
        program: RankProgram,
        results: Mapping[int, torch.Tensor],
        given: Mapping[str, torch.Tensor],
        named: Mapping[str, torch.Tensor],
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """
        Yields each input or parameter that requires a gradient, with its gradient from
        the `results` of `program`. Every rank must call this method.
        """
        for index, spec in enumerate(program.all_results):
            value = results.get(index)
            if spec.of in given:
                gradient = program.output(index, value)
                if given[spec.of].requires_grad:
                    yield given[spec.of], gradient.to(given[spec.of])
            elif spec.of:
                own = self._known[spec.of]
                value = program.moved(spec, value, self._program, own)
                if value is not None:
                    for name, part in self._parts_of_gradient(own, value):
                        if named[name].requires_grad:
                            yield named[name], part

    def _parts_of_gradient(
        self, spec: Any, value: torch.Tensor
    ) -> list[tuple[str, DTensor]]:
        """
        Returns pairs of a parameter's name and its gradient, one for each parameter
        that the argument `spec` merges.
        """
        program = self._program
        if not spec.repacked:
            # Contiguous like the parameter: fused optimizers on GPUs require it.
            return [(spec.name, program.distributed(spec, value.contiguous()))]
        return [
            (part.name, program.distributed(part, view.contiguous()))
            for part, view in merged_parts(program, spec, value)
        ]

    def sources(
        self,
        program: RankProgram,
        given: Mapping[str, torch.Tensor],
        named: Mapping[str, torch.Tensor],
    ) -> list[torch.Tensor]:
        """
        Returns the inputs and parameters that require gradients and whose gradients
        `program` returns.
        """
        found: list[torch.Tensor] = []
        for spec in program.all_results:
            if spec.of in given:
                found.append(given[spec.of])
            elif spec.of:
                own = self._known[spec.of]
                names = [p.name for p in own.parts()] if own.repacked else [own.name]
                found += [named[name] for name in names]
        return [tensor for tensor in found if tensor.requires_grad]


def in_order(
    gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
    sources: Sequence[torch.Tensor],
) -> list[torch.Tensor | None]:
    """
    Returns the gradient of each of `sources`; an entry is None if the tensor has no
    gradient. `gradients` has pairs of a tensor and its gradient. A tensor that is given
    twice has two gradients; a tensor that was frozen since has none.
    """
    own: dict[int, list[torch.Tensor]] = {}
    for source, gradient in reversed(gradients):
        own.setdefault(id(source), []).append(gradient)
    return [own[id(s)].pop() if id(s) in own else None for s in sources]
