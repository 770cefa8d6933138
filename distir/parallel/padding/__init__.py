"""
Padding of sequences. With padding, a module needs programs for only a few lengths.
"""
