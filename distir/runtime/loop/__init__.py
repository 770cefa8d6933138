"""The loop of a training: its data, start values, optimizers, settings of steps and logs."""
