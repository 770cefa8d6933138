"""The output of commands: errors and notes, tables, plots."""
