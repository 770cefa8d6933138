"""
The choices of a program, which `axes` and `layouts` share.

`strategies` lists the alternatives of an op. `nodes`, `bodies` and `tied_ops` build the
graph of choices: it has a node for each op, argument and value, and tied ops share a
node. `function_plan` holds the decisions. `written_plan` stores the decisions by op and
argument, without the program, and `annotate` writes the decisions to the program.
"""
