"""Rewrites that save memory: recomputation, and offloading to the host's memory."""
