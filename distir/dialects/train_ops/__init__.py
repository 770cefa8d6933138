"""The ops of the `train` dialect, one file per family; each lists its ops in `OPS`."""
