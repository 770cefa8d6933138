"""
The zoo: small models of many families, each imported, distributed and trained next to
PyTorch. `make zoo` runs it and writes the matrix in docs/reference/zoo.md.
"""
