"""
Starts the processes that run a package, and collects their results, times and memory.
"""
