"""The training loop: data, start values, optimizers, settings of steps, and logs."""
