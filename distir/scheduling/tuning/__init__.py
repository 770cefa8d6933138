"""
Tuning: finds the best values of a schedule's knobs together with the best distribution
of the program.

`space` describes the choices. `programs` makes the program of a choice. `trials`
simulates many choices on all cores. `tuner` and `corrections` choose the next
candidates; `tuner` runs the tuning and keeps a `journal`.
"""
