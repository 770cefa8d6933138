"""
Plans: how to distribute a program, as searches choose and users save them.

`plan` is a plan, `result` its time and memory, `programs` the programs that are searched
for. `plan_search` is the result of a search; `saved_plan` is a plan in a file, which is
followed again.
"""
