"""
Tuning: finds the best values of a schedule's knobs together with the best distribution.

`space` describes the choices, `programs` makes the program of a choice, `trials` simulates
many on all cores, `descent` and `corrections` choose what to try next, and `tuner` runs the
tuning and keeps a `journal`.
"""
