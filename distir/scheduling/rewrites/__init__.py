"""
Rewrites that schedules apply. They find groups of ops in a program, separate them from
other runs of the same functions, and replace them.
"""
