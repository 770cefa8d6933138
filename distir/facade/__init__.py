"""
The functions of `import distir`: the commands of `distir` as Python functions.

`model_program` defines the class of programs that most of these functions take and
return, and its display in notebooks. The other modules have the names of commands. All
imports are delayed until first use.
"""
