"""
Runs a program on clocks and memories instead of devices.

`run.py` compiles a program and executes it. `compiler.py` turns ops into the steps of
`compiled.py`. `computations.py` and `transfers.py` give the time and memory of a step
on the devices of `device_map.py`. `machine.py` executes the steps. If all devices of
each mesh do the same, `uniform.py` has one clock for each mesh, and `summaries.py`
executes a function once for all of its calls. Reports are made with `following.py`.
"""
