"""
Micro-benchmarks of the machine at hand, and the profile that explains their results.

`calibrate` lowers probes (`compute_probes.py`, `communication_probes.py`: programs of one
op) like any program, times them in turn on all devices (`distir.launch.timing`), fits
figures to what each op took (`samples.py`, `fit.py`) and returns a `MeasuredMachine`, which
writes a profile and a cluster.
"""

from distir.calibration.fit import Residual
from distir.calibration.machine import MeasuredMachine
from distir.calibration.measuring import Settings, calibrate

__all__ = ["MeasuredMachine", "Residual", "Settings", "calibrate"]
