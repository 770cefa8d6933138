"""
Training runs whose settings were read from the files of a training system. `model`
builds the training step, `prediction` predicts its time and memory, and `improvement`
searches for a faster run.
"""
