"""
Rewrites of schedules: groups of ops in a program are found, separated from other runs, and
replaced.
"""
