"""A limit of memory: multipliers, the smallest peak, and what cannot decide anything."""
