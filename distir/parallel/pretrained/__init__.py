"""The first values of parameters from files of weights."""
