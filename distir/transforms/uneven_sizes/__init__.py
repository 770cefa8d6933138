"""Sizes that devices do not divide: flat and padded tensors, heads and vocabularies."""
