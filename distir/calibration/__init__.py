"""
Micro-benchmarks of this machine, and the profile that is fitted to their results.

`calibrate` works in four steps. It makes probes, which are programs that measure one op
each (`compute_probes.py`, `communication_probes.py`), and lowers the probes like any
program. It times the probes in turn on all devices (`distir.launch.timing`). It fits
figures, such as an overhead and a time per byte, to the time of each op (`samples.py`,
`fit.py`). It returns a `MeasuredMachine`, which can be written as a profile and as a
cluster.
"""

from distir.calibration.fit import Residual
from distir.calibration.machine import MeasuredMachine
from distir.calibration.measuring import Settings, calibrate

__all__ = ["MeasuredMachine", "Residual", "Settings", "calibrate"]
