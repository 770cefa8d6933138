"""
Rewrites that schedules apply. The modules of this package find groups of ops in a
program, separate these groups from other runs of the same functions, and replace them.
"""
