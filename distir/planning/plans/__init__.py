"""
Plans: ways to distribute a program. Searches choose plans, and users save them.

`plan` defines a plan, `result` its time and memory, `programs` the programs that a
search distributes. `plan_search` holds the result of a search. `saved_plan` reads,
writes and applies a plan in a file.
"""
