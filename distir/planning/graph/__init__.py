"""
The choices of a program, which `axes` and `layouts` share.

`strategies` has the alternatives of an op. `nodes`, `bodies` and `tied_ops` are the graph: a
node for each op, argument and value, and the ops that decide together. `function_plan` holds
the decisions; `written_plan` holds them by op and argument, and `annotate` writes them to
the program.
"""
