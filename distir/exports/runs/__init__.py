"""
Training runs whose settings came from a system: `model` builds the step, `prediction` says
its time and memory, and `improvement` searches around its plan.
"""
