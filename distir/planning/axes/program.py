"""A program as one mesh axis sees it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.planning.axes.axis_op import AxisOp
from distir.planning.costs.unit import UnitCosts
from distir.planning.graph.strategies import LayoutStrategy
from distir.program import entry_function, linked_arguments, reachable_functions
from distir.sharding.mesh import Mesh
from distir.sharding.signatures import Signatures


class AxisProgram:
    """
    A program as one axis of a mesh sees it: what the axes planned before do, and what this
    axis can add.

    - `strategies`: what the axes planned before do to each op, calls and returns included;
    - `signatures`: tells which ops are alike;
    - `functions`: the functions that the entry reaches, by name; `entry`: the function that
      is entered;
    - `costs`: the cost model for strategies and changes of layout;
    - `later_parts`: into how many parts later axes split a parameter, on average.
    """

    def __init__(
        self,
        module: ModuleOp,
        mesh: Mesh,
        axis: str,
        strategies: Mapping[Operation, LayoutStrategy],
        signatures: Signatures,
        later_parts: float = 1.0,
    ):
        self.mesh = mesh
        self.later_parts = later_parts
        self.costs = UnitCosts(mesh)
        self.axis = axis
        self.strategies = strategies
        self.functions = {f.sym_name.data: f for f in reachable_functions(module)}
        self.entry = entry_function(module)
        self._signatures = signatures
        self._infos: dict[Operation, AxisOp] = {}
        self._known: dict[tuple[int, LayoutStrategy], AxisOp] = {}

    @cached_property
    def updates(self) -> Mapping[int, int]:
        """
        Maps the index of each entry result that replaces an argument in the next step, or
        is the gradient of one, to the index of that argument. Such results get the
        argument's placement.
        """
        return linked_arguments(self.entry)

    def info(self, op: Operation) -> AxisOp:
        """Returns the choices that this axis has for an op."""
        found = self._infos.get(op)
        if found is None:
            before = self.strategies[op]
            signature = self._signatures.of(op), before
            found = self._known.get(signature)
            if found is None:
                rule = self._signatures.rule(op)
                found = AxisOp(op, rule, before, self.costs, self.axis)
                self._known[signature] = found
            self._infos[op] = found
        return found
