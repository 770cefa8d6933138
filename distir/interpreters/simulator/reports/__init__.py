"""Reports on the time and the memory of a simulated program."""
