"""
Tuning: finds the best values of a schedule's knobs together with the best distribution
of the program.

`space` describes the points: knob values and plans. `programs` makes the program of a
point. `trials` simulates many points on all cores. `tuner` runs the tuning and keeps a
`journal`. `tuner` and `corrections` choose the next points.
"""
