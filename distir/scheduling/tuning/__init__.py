"""
Tuning: which values of a schedule's knobs, and which distribution beside them, are the best.

`space` says what there is to choose from, `programs` makes the program of a choice, `trials`
simulates many on all cores, `descent` and `corrections` say which to try next, `tuner` does
all that and keeps a `journal`.
"""
