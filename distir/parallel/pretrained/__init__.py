"""
Initial values of parameters from files of weights, and files of weights from
parameters.
"""
