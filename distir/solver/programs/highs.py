"""Solves integer and linear programs with HiGHS."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np

from distir.errors import DistIRError
from distir.solver.clock import Clock
from distir.solver.problem import Costs
from distir.solver.programs.program import (
    ConstraintRows,
    LinearProgram,
    ProgramSolution,
)
from distir.solver.programs.standard_output import nothing_on_stdout


def is_installed() -> bool:
    """Whether HiGHS is installed."""
    return find_spec("highspy") is not None


class Highs:
    """
    A program in HiGHS. Rows can be added between runs. HiGHS works in a separate thread
    and stops when the clock stops, so that a run can be interrupted.
    """

    @nothing_on_stdout()
    def __init__(self, program: LinearProgram):
        try:
            import highspy
        except ImportError as error:
            raise DistIRError(
                "the solver HiGHS is not installed: `pip install highspy`, or choose "
                "solver=cbc"
            ) from error
        self.kinds: Any = highspy
        self.relaxed = program.integers == 0
        self.highs: Any = highspy.Highs()
        self.highs.silent()
        # The default relative gap of 1e-4 would pass for optimal.
        self.highs.setOptionValue("mip_rel_gap", 0.0)
        self.highs.passModel(self._model(program))
        self.highs.HandleUserInterrupt = True

    def _model(self, program: LinearProgram) -> Any:
        model = self.kinds.HighsLp()
        model.num_col_ = columns = len(program.costs)
        model.num_row_ = len(program.rows.lower)
        model.col_cost_ = program.costs
        model.col_lower_ = np.zeros(columns)
        model.col_upper_ = program.upper
        model.row_lower_ = program.rows.lower
        model.row_upper_ = program.rows.upper
        model.a_matrix_.format_ = self.kinds.MatrixFormat.kRowwise
        model.a_matrix_.start_ = program.rows.starts
        model.a_matrix_.index_ = program.rows.columns
        model.a_matrix_.value_ = program.rows.values
        if not self.relaxed:
            kinds = self.kinds.HighsVarType
            integrality = [kinds.kInteger] * program.integers
            integrality += [kinds.kContinuous] * (columns - program.integers)
            model.integrality_ = integrality
        return model

    @nothing_on_stdout()
    def add(self, rows: ConstraintRows) -> None:
        """
        Adds rows to the program. The next run continues from the result of the previous
        run.
        """
        self.highs.addRows(
            len(rows.lower),
            rows.lower,
            rows.upper,
            len(rows.values),
            rows.starts[:-1],
            rows.columns,
            rows.values,
        )

    @nothing_on_stdout()
    def run(
        self,
        clock: Clock,
        gap: float = 0.0,
        nodes: int | None = None,
        start: Costs | None = None,
    ) -> ProgramSolution:
        """
        Solves the program until the clock stops, the search has `nodes`
        branch-and-bound nodes, or the absolute gap is at most `gap`. The gap is in the
        unit of the costs, not relative, because HiGHS does not know the constant part
        of the costs. `start` holds the values of the first columns of a known solution.
        """
        highs, kinds = self.highs, self.kinds
        highs.setOptionValue("mip_abs_gap", gap)
        if start is not None:
            highs.setSolution(len(start), np.arange(len(start), dtype=np.int32), start)
        if nodes is not None:
            highs.setOptionValue("mip_max_nodes", nodes)
        limit = max(clock.left, 0.0) if math.isfinite(clock.left) else 1e30
        # HiGHS counts the time of all runs together.
        highs.setOptionValue("time_limit", highs.getRunTime() + limit)
        self._wait(clock)

        status, info = highs.getModelStatus(), highs.getInfo()
        if status == kinds.HighsModelStatus.kInfeasible:
            return ProgramSolution(None, math.inf)
        feasible = kinds.SolutionStatus.kSolutionStatusFeasible
        solution = highs.getSolution()
        found = info.primal_solution_status == feasible
        columns = np.array(solution.col_value) if found else None
        optimal = status == kinds.HighsModelStatus.kOptimal
        if self.relaxed:
            if not optimal:
                return ProgramSolution(None, -math.inf)
            reduced = np.array(solution.col_dual)
            duals = np.array(solution.row_dual)
            return ProgramSolution(
                columns, info.objective_function_value, reduced, duals
            )
        exact = optimal and not gap
        bound = info.objective_function_value if exact else info.mip_dual_bound
        return ProgramSolution(columns, bound)

    def _wait(self, clock: Clock) -> None:
        self.highs.startSolve()
        done = False
        while not done:
            done, _ = self.highs.wait(0.02)
            if clock.stopped:  # HiGHS looks at its own limit only now and then
                self.highs.cancelSolve()
