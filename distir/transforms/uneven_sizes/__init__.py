"""
Handles sizes that the number of devices does not divide, by flattening and padding.
"""
