"""Reports on where the time and the memory of a simulated program go."""
