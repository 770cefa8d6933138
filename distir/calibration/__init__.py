"""
Micro-benchmarks of this machine, and the profile that is fitted to their results.

`calibrate` works in four steps. It makes probes, which are programs of one op
(`compute_probes.py`, `communication_probes.py`), and lowers them like any program. It
times them in turn on all devices (`distir.launch.timing`). It fits figures to the time
of each op (`samples.py`, `fit.py`). It returns a `MeasuredMachine`, which writes a
profile and a cluster.
"""

from distir.calibration.fit import Residual
from distir.calibration.machine import MeasuredMachine
from distir.calibration.measuring import Settings, calibrate

__all__ = ["MeasuredMachine", "Residual", "Settings", "calibrate"]
