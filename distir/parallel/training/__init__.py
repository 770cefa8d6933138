"""
The parts of a training step of a parallel module: its loss, stored values and outputs.
"""
