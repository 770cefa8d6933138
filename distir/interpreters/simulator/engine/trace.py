"""Writes Chrome trace events to a file, one after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np

from distir.interpreters.simulator.engine.compiled import CommunicationStep
from distir.interpreters.simulator.engine.machine import Execution
from distir.interpreters.simulator.engine.scopes import full_scope

_MICROSECONDS = 1e6


class TraceWriter:
    """
    Writes a timeline to an open file, in Chrome's trace format: call `record` with every op
    as it runs, and `close` at the end. `devices` are the ids of the devices that the
    machine's positions stand for; processes are named after `cluster`.

    There is one complete event per op and device, in microseconds: the process is the
    device, the name is the op and its scope; the thread is 0, or 1 for the communication
    stream, or 2 for asynchronous sends. Ops that take no time are left out.
    """

    def __init__(self, file: TextIO, devices: Sequence[int], cluster: str):
        self._file = file
        self._devices = np.asarray(devices)
        self._separator = "\n"
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for device in devices:
            name = {"name": f"device {device} of {cluster}"}
            self._write(
                {"name": "process_name", "ph": "M", "pid": device, "args": name}
            )

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(self._separator + json.dumps(event))
        self._separator = ",\n"

    def record(self, execution: Execution) -> None:
        """Writes an op as it runs, on each of its devices."""
        step, path, positions, start, seconds = execution
        scope = full_scope(step.op, path)
        calls = [call.callee.name for call in path]
        track, category = 0, "compute"
        if isinstance(step, CommunicationStep):
            category = "communication"
            track = step.is_asynchronous * (1 if step.is_collective else 2)
        event: dict[str, Any] = {
            "name": f"{step.op.name} {scope}".strip(),
            "cat": category,
            "ph": "X",
            "tid": track,
            "args": {"scope": scope, "calls": " > ".join(calls)},
        }
        begun = json.dumps(event)[:-1]
        devices = self._devices[positions].tolist()
        starts = (start * _MICROSECONDS).tolist()
        durations = np.broadcast_to(np.multiply(seconds, _MICROSECONDS), start.shape)
        for device, begin, duration in zip(
            devices, starts, durations.tolist(), strict=True
        ):
            if duration > 0:
                self._file.write(
                    f'{self._separator}{begun}, "pid": {device}, "ts": {begin!r}, '
                    f'"dur": {duration!r}}}'
                )
                self._separator = ",\n"

    def close(self) -> None:
        """Ends the list of events."""
        self._file.write("\n]}\n")
