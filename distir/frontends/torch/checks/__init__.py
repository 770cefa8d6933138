"""
Compares an imported program with the PyTorch module from which it was imported.
`comparison.py` chooses the inputs and judges the differences.
"""
