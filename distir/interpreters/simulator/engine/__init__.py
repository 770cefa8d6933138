"""
Runs a program on clocks and memories instead of devices.

`run.py` compiles a program and executes it. `compiled.py` turns ops into steps, with what
`computations.py` and `transfers.py` say that each takes on the devices of `device_map.py`;
`machine.py` executes the steps. Where all devices of a mesh do the same, `uniform.py` has
one clock for each mesh, and `summaries.py` executes a function once for all of its calls.
Reports are made with `following.py`.
"""
