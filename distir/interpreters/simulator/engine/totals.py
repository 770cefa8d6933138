"""Sums over a program, which do not depend on when an op runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distir.interpreters.simulator.engine.compiled import (
    CommunicationStep,
    CompiledFunction,
    ComputationStep,
    OpStep,
)


class Totals:
    """
    Sums over all ops that ran, one entry per device: seconds of `compute`, and of
    `communication` that occupies the device; bytes `sent`; floating-point operations
    (`flops`), and the `seconds_at_peak` that these would take at the device's peak. `ops`
    is the number of ops, counted once for all devices.
    """

    def __init__(self, devices: int):
        self.compute = np.zeros(devices)
        self.communication = np.zeros(devices)
        self.sent = np.zeros(devices)
        self.flops = np.zeros(devices)
        self.seconds_at_peak = np.zeros(devices)
        self.ops = 0

    @staticmethod
    def of(runs: Mapping[CompiledFunction, int], devices: int) -> Totals:
        """
        Returns the sums over a run on so many devices (positions of the machine). `runs`
        says how often each function ran; a function counts for its own ops, not for those
        of the functions that it calls.
        """
        total = Totals(devices)
        for compiled, count in runs.items():
            once = Totals(devices)
            once._add_steps(compiled)
            total.compute += count * once.compute
            total.communication += count * once.communication
            total.sent += count * once.sent
            total.flops += count * once.flops
            total.seconds_at_peak += count * once.seconds_at_peak
            total.ops += count * once.ops
        return total

    def _add_steps(self, compiled: CompiledFunction) -> None:
        for step in compiled.steps:
            if isinstance(step, OpStep):
                self.ops += 1
            if isinstance(step, CommunicationStep):
                for transfer in step.transfers:
                    self.sent[transfer.positions] += transfer.sent
                    if not step.is_asynchronous:
                        seconds = np.reshape(transfer.seconds, (-1, 1))
                        self.communication[transfer.positions] += seconds
            elif isinstance(step, ComputationStep):
                self.compute[step.positions] += step.seconds
                if step.flops:
                    self.flops[step.positions] += step.flops
                    self.seconds_at_peak[step.positions] += step.seconds_at_peak
